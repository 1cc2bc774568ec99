"""From the keys of a GGUF file to a config.json. Pure.

llama.cpp reads `general.*`, `tokenizer.*`, `split.*` and the keys that begin with the architecture's name. Of those
every one is applied, known to be without effect, or refused by name. Keys of other tools are none of its business.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from workers.shared.errors import ConfigError

# Architecture in the file -> model_type of transformers. A Mistral file calls itself "llama": it computes the same.
MODEL_TYPES: Mapping[str, str] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}

_ROPE_BASE = 10000.0
_GEMMA3_PATTERN = 6  # one layer in so many has no window, where the file does not say
_GEMMA3_27B_LAYERS = 62  # the one size whose scores are scaled by another number than the head's width
_INFORMATIVE = frozenset({"rope.scaling.finetuned", "rope.dimension_sections"})
# Keys that change nothing at these values; at any other they are refused.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (1.0, 0.0),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "logit_scale": (1.0, 0.0),
    "pooling_type": (0,),
    "residual_scale": (1.0, 0.0),
    "tensor_data_layout": ("reference",),
    "use_parallel_residual": (False,),
}


class Keys:
    """The keys of one architecture, each of which must be asked for."""

    def __init__(self, keys: Mapping[str, Any], architecture: str) -> None:
        prefix = f"{architecture}."
        self._prefix = prefix
        self._left = {name.removeprefix(prefix): value for name, value in keys.items() if name.startswith(prefix)}

    def has(self, name: str) -> bool:
        """Whether the file says anything of `name`."""
        return name in self._left

    def take(self, name: str, default: Any = None) -> Any:
        """The value of `name`; raises `ConfigError` where it is missing and there is no default."""
        value = self._left.pop(name, default)
        if value is None:
            raise ConfigError(f"key {self._prefix}{name} is missing")
        return value

    def take_one(self, name: str, default: Any = None) -> Any:
        """As `take`, for what a file may give layer by layer; raises `ConfigError` where layers differ."""
        value = self.take(name, default)
        if not isinstance(value, list):
            return value
        if len(set(value)) != 1:
            raise self.refusal(name, value, "layers of different sizes are not supported")
        return value[0]

    def refusal(self, name: str, value: Any, reason: str) -> ConfigError:
        """An error that names the key."""
        return ConfigError(f"key {self._prefix}{name} is {value!r}: {reason}")

    def refuse_rest(self) -> None:
        """Raises `ConfigError` for the first key that nobody asked for and that is not without effect."""
        for name, value in self._left.items():
            if name not in _INFORMATIVE and not (name in _NEUTRAL and value in _NEUTRAL[name]):
                raise self.refusal(name, value, "it changes what the model computes in a way that is not supported")


def model_config(
    keys: Mapping[str, Any], tensors: Mapping[str, Sequence[int]], rope_factors: Sequence[float] | None
) -> dict[str, Any]:
    """config.json for a file with these keys, tensors (shapes by name) and, if it has any, factors of `rope_freqs`.

    Raises `ConfigError` naming the key that is missing or not supported.
    """
    architecture = keys.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in MODEL_TYPES:
        supported = ", ".join(MODEL_TYPES)
        raise ConfigError(
            f"general.architecture {architecture!r} is not supported in GGUF files; these are: {supported}"
        )
    own = Keys(keys, architecture)
    heads: int = own.take_one("attention.head_count")
    hidden: int = own.take("embedding_length")
    head_dim: int = own.take("attention.key_length", hidden // heads)
    config: dict[str, Any] = {
        "architectures": [_CLASSES[architecture]],
        "model_type": MODEL_TYPES[architecture],
        "hidden_size": hidden,
        "num_hidden_layers": own.take("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": own.take_one("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": own.take_one("feed_forward_length"),
        "max_position_embeddings": own.take("context_length"),
        "rms_norm_eps": own.take("attention.layer_norm_rms_epsilon"),
        "vocab_size": tensors["token_embd.weight"][0] if "token_embd.weight" in tensors else 0,
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    for name, expected in (
        ("attention.value_length", head_dim),
        ("rope.dimension_count", head_dim),
        ("vocab_size", config["vocab_size"]),
    ):
        if (value := own.take(name, expected)) != expected:
            raise own.refusal(name, value, f"only {expected} is supported for this model")
    rope = _rope(own, config["max_position_embeddings"], rope_factors)
    if architecture == "gemma3":
        config |= _gemma3(own, config, rope)
    else:
        _refuse_window(own, config["max_position_embeddings"])
        config["rope_parameters"] = rope
    if architecture == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    if own.has("attention.scale") and (scale := own.take("attention.scale")) not in (0.0, head_dim**-0.5):
        raise own.refusal("attention.scale", scale, "only 1 / sqrt(attention.key_length) is supported")
    own.refuse_rest()
    return config


def _rope(own: Keys, context: int, factors: Sequence[float] | None) -> dict[str, Any]:
    """transformers' parameters for the rotary embedding that llama.cpp would compute."""
    base = own.take("rope.freq_base", _ROPE_BASE)
    factor = own.take("rope.scaling.factor", 0.0) or own.take("rope.scale_linear", 0.0) or 1.0
    kind = own.take("rope.scaling.type", "linear")
    original = own.take("rope.scaling.original_context_length", context)
    attention = own.take("rope.scaling.attn_factor", 1.0)
    if kind not in ("none", "linear", "yarn"):
        raise own.refusal("rope.scaling.type", kind, "none, linear and yarn are supported")
    if kind == "yarn":
        if factors is not None:
            raise ConfigError("tensor rope_freqs.weight together with rope.scaling.type 'yarn' is not supported")
        return {"rope_type": "yarn", "rope_theta": base, **_yarn(own, factor, original, attention)}
    if attention != 1.0:
        raise own.refusal("rope.scaling.attn_factor", attention, "it is supported with rope.scaling.type 'yarn' only")
    factor = 1.0 if kind == "none" else factor
    if factors is not None:
        # What transformers calls longrope divides each frequency by a number of its own, as this tensor does. With
        # the same numbers for short and long sequences nothing depends on the length.
        divisors = [factor * value for value in factors]
        return {
            "rope_type": "longrope",
            "rope_theta": base,
            "short_factor": divisors,
            "long_factor": divisors,
            "factor": 1.0,
            "attention_factor": 1.0,
            "original_max_position_embeddings": context,
        }
    if factor == 1.0:
        return {"rope_type": "default", "rope_theta": base}
    return {"rope_type": "linear", "rope_theta": base, "factor": factor}


def _yarn(own: Keys, factor: float, original: int, attention: float) -> dict[str, Any]:
    for name, neutral in (("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0), ("yarn_log_multiplier", 0.0)):
        if (value := own.take(f"rope.scaling.{name}", neutral)) not in (neutral, -1.0):
            raise own.refusal(f"rope.scaling.{name}", value, f"only {neutral} is supported")
    return {
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": own.take("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": own.take("rope.scaling.yarn_beta_slow", 1.0),
        "attention_factor": attention * (1.0 + 0.1 * math.log(factor)),
    }


def _gemma3(own: Keys, config: Mapping[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    layers: int = config["num_hidden_layers"]
    pattern = own.take("attention.sliding_window_pattern", _GEMMA3_PATTERN)
    windowed = pattern if isinstance(pattern, list) else [(layer + 1) % pattern != 0 for layer in range(layers)]
    width = config["hidden_size"] // config["num_attention_heads"]
    local = {"rope_type": "default", "rope_theta": own.take("rope.freq_base_swa", _ROPE_BASE)}
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width if layers == _GEMMA3_27B_LAYERS else config["head_dim"],
        "sliding_window": own.take("attention.sliding_window"),
        "layer_types": ["sliding_attention" if inside else "full_attention" for inside in windowed],
        "rope_parameters": {"sliding_attention": local, "full_attention": rope},
        "final_logit_softcapping": own.take("final_logit_softcapping", 0.0) or None,
    }


def _refuse_window(own: Keys, context: int) -> None:
    window = own.take("attention.sliding_window", 0)
    if 0 < window < context:
        raise own.refusal("attention.sliding_window", window, "windows are supported in gemma3 files only")
