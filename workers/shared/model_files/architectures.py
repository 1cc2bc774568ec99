"""Which architectures can be served, and why the others cannot."""

from collections.abc import Mapping
from typing import Any

from workers.shared.errors import ConfigError
from workers.shared.packed.schemes import finder

_COMMON = frozenset({
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
})  # fmt: skip
# model_type -> the fields of config.json that it is computed with. Each passes tests/model/test_shard.py.
SUPPORTED: Mapping[str, frozenset[str]] = {
    "llama": _COMMON | {"attention_bias", "mlp_bias"},
    "qwen2": _COMMON | {"sliding_window", "use_sliding_window", "max_window_layers"},
    "qwen3": _COMMON | {"attention_bias", "sliding_window", "use_sliding_window", "max_window_layers"},
    "mistral": _COMMON | {"sliding_window"},
    "olmo2": _COMMON | {"attention_bias"},
    "smollm3": _COMMON
    | {"attention_bias", "mlp_bias", "no_rope_layer_interval", "no_rope_layers"}
    | {"sliding_window", "use_sliding_window", "max_window_layers"},
    "gemma3_text": _COMMON
    | {
        "attention_bias",
        "final_logit_softcapping",
        "hidden_activation",
        "query_pre_attn_scalar",
        "rope_local_base_freq",
    }
    | {"sliding_window", "sliding_window_pattern", "_sliding_window_pattern"},
}
# Fields that change nothing that is computed here: about files, training, or how text is chosen when nobody says.
_INFORMATIVE = frozenset({
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "packed_tensors",  # how they are stored, not what is computed
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "quantization_config",  # asked for by itself
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
})  # fmt: skip
# What rope_scaling and rope_parameters may say, in the layouts of transformers 4 and 5.
_ROPE_FIELDS = frozenset({
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "finetuned",
    "high_freq_factor",
    "long_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "rope_theta",
    "rope_type",
    "short_factor",
    "truncate",
    "type",
})  # fmt: skip
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")

_RECURRENT = "it has recurrent layers, whose state cannot be rolled back by position yet"
_MLA = "it uses multi-head latent attention, whose compressed cache is not implemented yet"
_ENCODER_DECODER = "it is an encoder-decoder; only decoder-only models can be split this way"
_MULTIMODAL = "it is multimodal; serve a text-only checkpoint of the same family"
_EXPERTS = "it has mixture-of-experts layers, which are not tested yet"
_UNUSUAL_ATTENTION = "its attention differs from the standard one and is not tested yet"

REFUSED: Mapping[str, str] = {
    "bamba": _RECURRENT,
    "falcon_mamba": _RECURRENT,
    "jamba": _RECURRENT,
    "lfm2": _RECURRENT,
    "mamba": _RECURRENT,
    "mamba2": _RECURRENT,
    "qwen3_5": _RECURRENT,
    "qwen3_5_text": _RECURRENT,
    "qwen3_next": _RECURRENT,
    "recurrent_gemma": _RECURRENT,
    "rwkv": _RECURRENT,
    "zamba2": _RECURRENT,
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "kimi_k2": _MLA,
    "minicpm3": _MLA,
    "bart": _ENCODER_DECODER,
    "mt5": _ENCODER_DECODER,
    "t5": _ENCODER_DECODER,
    "whisper": _ENCODER_DECODER,
    "gemma3": _MULTIMODAL,
    "gemma3n": _MULTIMODAL,
    "llama4": _MULTIMODAL,
    "llava": _MULTIMODAL,
    "mistral3": _MULTIMODAL,
    "mllama": _MULTIMODAL,
    "qwen2_5_vl": _MULTIMODAL,
    "qwen2_vl": _MULTIMODAL,
    "qwen3_vl": _MULTIMODAL,
    "gpt_oss": _EXPERTS,
    "mixtral": _EXPERTS,
    "qwen2_moe": _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "gemma2": _UNUSUAL_ATTENTION,
}

_LENGTH_DEPENDENT = "it depends on the length of the sequence, so a token's rotation would change with what follows"


def check_supported(config: Mapping[str, Any]) -> None:
    """Raises `ConfigError` with the reason where a model with this config.json cannot be served.

    A field that is not known to be applied or to be without effect is refused, unless it is unset: `null`, `false` or
    empty.
    """
    kind = config.get("model_type")
    supported = ", ".join(sorted(SUPPORTED))
    if not isinstance(kind, str):
        raise ConfigError(f"config.json: model_type is missing; supported are {supported}")
    if kind not in SUPPORTED:
        reason = _ENCODER_DECODER if config.get("is_encoder_decoder") else REFUSED.get(kind, "it is not tested yet")
        raise ConfigError(f"model_type {kind!r} is not supported: {reason}. Supported are {supported}")
    finder(config)
    if config.get("use_bidirectional_attention"):
        raise ConfigError("config.json: use_bidirectional_attention: a token would need the ones that follow it")
    for name, value in config.items():
        private = name.startswith("_") and name not in SUPPORTED[kind]
        if value and not private and name not in SUPPORTED[kind] | _INFORMATIVE and not _is_one(name, value):
            raise ConfigError(
                f"config.json: {name} is {value!r}, which is not supported for {kind!r}; if it changes nothing that "
                f"the model computes, remove it"
            )
    for name in ("rope_scaling", "rope_parameters"):
        for rope in _ropes(config.get(name)):
            _check_rope(name, rope)


def _is_one(name: str, value: Any) -> bool:
    """A factor of 1 is without effect."""
    return name == "partial_rotary_factor" and value == 1


def _ropes(value: Any) -> list[Mapping[str, Any]]:
    """The parameters themselves, or those of each kind of layer."""
    if not isinstance(value, Mapping):
        return []
    nested = [inner for inner in value.values() if isinstance(inner, Mapping)]
    return nested or [value]


def _check_rope(field: str, rope: Mapping[str, Any]) -> None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "longrope" and rope.get("short_factor") == rope.get("long_factor"):
        return  # the same factors for any length
    if kind not in _ROPE_TYPES:
        reason = _LENGTH_DEPENDENT if kind in ("dynamic", "longrope") else f"supported are {', '.join(_ROPE_TYPES)}"
        raise ConfigError(f"config.json: {field}: rope type {kind!r} is not supported: {reason}")
    for name, value in rope.items():
        if value is not None and name not in _ROPE_FIELDS and not _is_one(name, value):
            raise ConfigError(f"config.json: {field}.{name} is {value!r}, which is not supported")
