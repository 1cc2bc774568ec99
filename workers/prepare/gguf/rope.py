"""transformers' parameters for the rotary embedding that llama.cpp would compute for a GGUF file. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from workers.prepare.gguf.keys import Keys
from workers.shared.errors import ConfigError

Factors = Mapping[str, Sequence[float]]  # of frequencies, by the names of the tensors that they are
FREQUENCIES = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_BASE = 10000.0


def rope_parameters(own: Keys, context: int, factors: Sequence[float] | None) -> dict[str, Any]:
    """Of a model of so many positions; `factors` divide its frequencies. Raises `ConfigError` naming the key."""
    base = own.take("rope.freq_base", ROPE_BASE)
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


def long_parameters(own: Keys, context: int, factors: Factors) -> dict[str, Any]:
    """Of a model with factors for short and for long sequences."""
    original: int = own.take("rope.scaling.original_context_length")
    return {
        "rope_type": "longrope",
        "rope_theta": own.take("rope.freq_base", ROPE_BASE),
        "short_factor": list(factors[SHORT]),
        "long_factor": list(factors[LONG]),
        "factor": context / original,
        "attention_factor": own.take("rope.scaling.attn_factor", 1.0),
        "original_max_position_embeddings": original,
    }
