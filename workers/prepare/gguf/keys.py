"""The keys of one architecture in a GGUF file: asked for, known to be without effect, or refused by name. Pure."""

from collections.abc import Mapping
from typing import Any

from workers.shared.errors import ConfigError

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
