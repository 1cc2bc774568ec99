"""Which architectures can be served, and why the others cannot."""

from collections.abc import Mapping
from typing import Any

from workers.shared.errors import ConfigError

# Each of these passes tests/model/test_shard.py on a tiny random model.
SUPPORTED = frozenset({"llama", "qwen2", "qwen3", "mistral", "gemma3_text"})

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

# Their inverse frequencies change with the length of the sequence, so a position's rotation would depend on what
# follows it.
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def check_supported(config: Mapping[str, Any]) -> None:
    """Raises `ConfigError` with the reason where a model with this config.json cannot be served."""
    kind = config.get("model_type")
    supported = ", ".join(sorted(SUPPORTED))
    if not isinstance(kind, str):
        raise ConfigError(f"config.json: model_type is missing; supported are {supported}")
    if kind not in SUPPORTED:
        reason = _ENCODER_DECODER if config.get("is_encoder_decoder") else REFUSED.get(kind, "it is not tested yet")
        raise ConfigError(f"model_type {kind!r} is not supported: {reason}. Supported are {supported}")
    if config.get("quantization_config"):
        raise ConfigError("config.json: quantization_config: quantised checkpoints are not supported; use the original")
    if config.get("use_bidirectional_attention"):
        raise ConfigError("config.json: use_bidirectional_attention: a token would need the ones that follow it")
    if config.get("attn_logit_softcapping") is not None:
        raise ConfigError("config.json: attn_logit_softcapping is not supported")
    for rope in _rope_kinds(config):
        if rope in _LENGTH_DEPENDENT_ROPE:
            raise ConfigError(
                f"config.json: rope type {rope!r} is not supported, because it depends on the length of the sequence"
            )


def _rope_kinds(config: Mapping[str, Any]) -> set[str]:
    """Every rope type named, in the layouts of both transformers 4 (rope_scaling) and 5 (rope_parameters)."""
    found: set[str] = set()
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if isinstance(value, Mapping):
            nested = [inner for inner in value.values() if isinstance(inner, Mapping)]
            for entry in [value, *nested]:
                kind = entry.get("rope_type", entry.get("type"))
                if isinstance(kind, str):
                    found.add(kind)
    return found
