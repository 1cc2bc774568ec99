"""What config.json says of one family and no other, from the keys of a GGUF file. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from workers.prepare.gguf.keys import Keys
from workers.prepare.gguf.rope import FREQUENCIES, LONG, ROPE_BASE, Factors, long_parameters, rope_parameters

_GELU = "gelu_pytorch_tanh"
_GEMMA2_WINDOW = 4096  # where the file does not say
_GEMMA3_PATTERN = 6  # one layer in so many has no window, where the file does not say
# The one size of either whose scores are scaled by another number than the head's width.
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62
_FULL, _SLIDING = "full_attention", "sliding_attention"


def plain(own: Keys, config: Mapping[str, Any], factors: Factors) -> dict[str, Any]:
    """Of a family with nothing of its own but how it rotates."""
    context: int = config["max_position_embeddings"]
    window = own.take("attention.sliding_window", 0)
    if 0 < window < context:
        raise own.refusal("attention.sliding_window", window, "windows are not supported in files of this architecture")
    return {"rope_parameters": rope_parameters(own, context, factors.get(FREQUENCIES))}


def _gemma(own: Keys, config: Mapping[str, Any], factors: Factors) -> dict[str, Any]:
    return {"hidden_activation": _GELU, **plain(own, config, factors)}


def _gemma2(own: Keys, config: Mapping[str, Any], factors: Factors) -> dict[str, Any]:
    layers: int = config["num_hidden_layers"]
    return {
        "hidden_activation": _GELU,
        "query_pre_attn_scalar": _width(config) if layers == _GEMMA2_27B_LAYERS else config["head_dim"],
        "sliding_window": own.take("attention.sliding_window", _GEMMA2_WINDOW),
        "layer_types": [_FULL if layer % 2 else _SLIDING for layer in range(layers)],
        "rope_parameters": rope_parameters(own, config["max_position_embeddings"], factors.get(FREQUENCIES)),
        "attn_logit_softcapping": own.take("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": own.take("final_logit_softcapping", 30.0),
    }


def _gemma3(own: Keys, config: Mapping[str, Any], factors: Factors) -> dict[str, Any]:
    layers: int = config["num_hidden_layers"]
    rope = rope_parameters(own, config["max_position_embeddings"], factors.get(FREQUENCIES))
    pattern = own.take("attention.sliding_window_pattern", _GEMMA3_PATTERN)
    windowed = pattern if isinstance(pattern, list) else [(layer + 1) % pattern != 0 for layer in range(layers)]
    local = {"rope_type": "default", "rope_theta": own.take("rope.freq_base_swa", ROPE_BASE)}
    return {
        "hidden_activation": _GELU,
        "query_pre_attn_scalar": _width(config) if layers == _GEMMA3_27B_LAYERS else config["head_dim"],
        "sliding_window": own.take("attention.sliding_window"),
        "layer_types": [_SLIDING if inside else _FULL for inside in windowed],
        "rope_parameters": {_SLIDING: local, _FULL: rope},
        "final_logit_softcapping": own.take("final_logit_softcapping", 0.0) or None,
    }


def _width(config: Mapping[str, Any]) -> int:
    width: int = config["hidden_size"] // config["num_attention_heads"]
    return width


def _granite(own: Keys, config: Mapping[str, Any], factors: Factors) -> dict[str, Any]:
    return {
        "attention_multiplier": own.take("attention.scale", config["head_dim"] ** -0.5),
        "embedding_multiplier": own.take("embedding_scale", 1.0),
        "residual_multiplier": own.take("residual_scale", 1.0),
        "logits_scaling": own.take("logit_scale", 1.0),
        **plain(own, config, factors),
    }


def _mixtral(own: Keys, config: Mapping[str, Any], factors: Factors) -> dict[str, Any]:
    return {
        "num_local_experts": own.take("expert_count"),
        "num_experts_per_tok": own.take("expert_used_count"),
        **plain(own, config, factors),
    }


def _qwen3_moe(own: Keys, config: Mapping[str, Any], factors: Factors) -> dict[str, Any]:
    return {
        "num_experts": own.take("expert_count"),
        "num_experts_per_tok": own.take("expert_used_count"),
        "moe_intermediate_size": own.take("expert_feed_forward_length"),
        "norm_topk_prob": True,
        **plain(own, config, factors),
    }


def _phi3(own: Keys, config: Mapping[str, Any], factors: Factors) -> dict[str, Any]:
    """Its window is applied, as the model was trained; llama.cpp lets every token see all."""
    context: int = config["max_position_embeddings"]
    window = own.take("attention.sliding_window", 0)
    said: dict[str, Any] = {"sliding_window": window if 0 < window < context else None}
    if LONG in factors:
        rope = long_parameters(own, context, factors)
        said["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    else:
        rope = rope_parameters(own, context, factors.get(FREQUENCIES))
    rotated = own.take("rope.dimension_count", config["head_dim"])
    return said | {"rope_parameters": {**rope, "partial_rotary_factor": rotated / config["head_dim"]}}


# By model_type; `plain` for the others.
OWN: Mapping[str, Callable[[Keys, Mapping[str, Any], Factors], dict[str, Any]]] = {
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "granite": _granite,
    "mixtral": _mixtral,
    "phi3": _phi3,
    "qwen3_moe": _qwen3_moe,
}
