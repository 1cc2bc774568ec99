"""Which architectures can be served, and why the others cannot."""

from collections.abc import Mapping
from typing import Any

from workers.shared.errors import ConfigError
from workers.shared.model_files.families import FAMILIES, Family
from workers.shared.packed.schemes import finder

# Fields that change nothing that is computed here: about files, training, or how text is chosen when nobody says.
_INFORMATIVE = frozenset({
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "aux_loss_alpha",  # while training
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
    "embd_pdrop",
    "embedding_dropout",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "hidden_dropout",
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
    "num_logits_to_keep",
    "num_nextn_predict_layers",  # layers that predict further tokens, which are not computed
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "packed_tensors",  # how they are stored, not what is computed
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "quantization_config",  # asked for by itself
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "residual_dropout",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",  # while training
    "sep_token_id",
    "seq_aux",  # while training
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
    "z_loss_coefficient",
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
# "dynamic" stretches only what is longer than the model's own context, and no slot is.
_ROPE_TYPES = ("default", "dynamic", "linear", "llama3", "longrope", "proportional", "yarn")

_SIZES = ("hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "vocab_size")
_OPTIONAL_SIZES = ("head_dim", "num_key_value_heads")

_RECURRENT = "it has recurrent layers of a kind that is not implemented yet"
_MLA = "its kind of multi-head latent attention is not implemented yet"
_PASSES_NOTHING_ON = "its layers in transformers do not tell their attention which frame is computed"
_ENCODER_DECODER = "it is an encoder-decoder; only decoder-only models can be split this way"
_MULTIMODAL = "it is multimodal, and its language model is of no family that is served"

# Of fields that some models of a served family have.
_FIELD_REASONS = {
    "hidden_size_per_layer_input": "layers that read embeddings of their own (Gemma 4 E) are not implemented",
    "num_kv_shared_layers": "layers that read the keys and values of others (Gemma 4 E) are not implemented",
}

REFUSED: Mapping[str, str] = {
    "bamba": _RECURRENT,
    "olmo_hybrid": _RECURRENT,
    "kimi_linear": _RECURRENT,
    "falcon_mamba": _RECURRENT,
    "jamba": _RECURRENT,
    "mamba": _RECURRENT,
    "mamba2": _RECURRENT,
    "recurrent_gemma": _RECURRENT,
    "rwkv": _RECURRENT,
    "zamba2": _RECURRENT,
    "kimi_k2": _MLA,
    "minicpm3": _MLA,
    "nemotron": _PASSES_NOTHING_ON,
    "stablelm": _PASSES_NOTHING_ON,
    "bart": _ENCODER_DECODER,
    "mt5": _ENCODER_DECODER,
    "t5": _ENCODER_DECODER,
    "whisper": _ENCODER_DECODER,
    "gemma3n": _MULTIMODAL,
    "llama4": _MULTIMODAL,
    "llava": _MULTIMODAL,
    "mllama": _MULTIMODAL,
    "qwen2_5_vl": _MULTIMODAL,
    "qwen2_vl": _MULTIMODAL,
    "qwen3_vl": _MULTIMODAL,
}


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the language model, where a model that also sees or hears has one that can be served."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) and inner.get("model_type") in FAMILIES else config


def check_supported(config: Mapping[str, Any]) -> None:
    """Raises `ConfigError` with the reason where a model with this config.json cannot be served.

    A field that is not known to be applied or to be without effect is refused, unless it is unset: `null`, `false` or
    empty.
    """
    kind = config.get("model_type")
    supported = ", ".join(sorted(FAMILIES))
    if not isinstance(kind, str):
        raise ConfigError(f"config.json: model_type is missing; supported are {supported}")
    if kind not in FAMILIES:
        reason = _ENCODER_DECODER if config.get("is_encoder_decoder") else REFUSED.get(kind, "it is not tested yet")
        raise ConfigError(f"model_type {kind!r} is not supported: {reason}. Supported are {supported}")
    _check_sizes(config)
    finder(config)
    if config.get("use_bidirectional_attention"):
        raise ConfigError("config.json: use_bidirectional_attention: a token would need the ones that follow it")
    family = FAMILIES[kind]
    for name, value in {**family.assumed, **config}.items():
        private = name.startswith("_") and name not in family.fields
        if value and not private and name not in family.fields | _INFORMATIVE and not _is_one(name, value):
            if name in _FIELD_REASONS:
                raise ConfigError(f"config.json: {name} is {value!r}: {_FIELD_REASONS[name]}")
            raise ConfigError(
                f"config.json: {name} is {value!r}, which is not supported for {kind!r}; if it changes nothing that "
                f"the model computes, remove it"
            )
        if value and value not in family.only.get(name, (value,)):
            served = " or ".join(map(repr, family.only[name])) or "unset"
            raise ConfigError(f"config.json: {name} is {value!r}; of {kind!r} it is served where it is {served}")
    for name in ("rope_scaling", "rope_parameters"):
        for rope in _ropes(config.get(name)):
            _check_rope(name, rope, family)


def _check_sizes(config: Mapping[str, Any]) -> None:
    for name in (*_SIZES, *_OPTIONAL_SIZES):
        value = config.get(name)
        unset = value is None and (name in _OPTIONAL_SIZES or name not in config)
        if not unset and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"config.json: {name} is {value!r}, not a whole number of at least 1")


def _is_one(name: str, value: Any) -> bool:
    """A factor of 1 is without effect."""
    return name == "partial_rotary_factor" and value == 1


def _ropes(value: Any) -> list[Mapping[str, Any]]:
    """The parameters themselves, or those of each kind of layer."""
    if not isinstance(value, Mapping):
        return []
    nested = [inner for inner in value.values() if isinstance(inner, Mapping)]
    return nested or [value]


def _check_rope(field: str, rope: Mapping[str, Any], family: Family) -> None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _ROPE_TYPES:
        raise ConfigError(
            f"config.json: {field}: rope type {kind!r} is not supported: supported are {', '.join(_ROPE_TYPES)}"
        )
    for name, value in rope.items():
        known = name in _ROPE_FIELDS or name in family.fields
        if value is not None and not known and not _is_one(name, value):
            raise ConfigError(f"config.json: {field}.{name} is {value!r}, which is not supported")
