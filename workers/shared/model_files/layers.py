"""What each decoder layer keeps of a sequence: keys and values by position, recurrent states, or both; torch-free."""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from workers.shared.config import EngineConfig
from workers.shared.model_files.facts import head_dim
from workers.shared.model_files.families import family_of
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.windows import layer_windows, window_rule

SNAPSHOTS = 4  # states behind the newest whole prompt chunks, a slot
_SPARE = 2  # the state that the oldest token in flight begins with, and the one that is being written
_STATE_BYTES = 4  # recurrent states are float32 whatever the model's dtype
_REMEMBERING = ("conv", "linear_attention")
_ATTENDING = ("full_attention", "sliding_attention")
_FORGETTING = ("mlp", "moe")  # layers that hold nothing
_SHORT = {"M": "linear_attention", "*": "full_attention", "E": "moe", "-": "mlp"}  # in Nemotron-H's pattern


class StateShape(NamedTuple):
    """The state of one layer behind one position."""

    conv: tuple[int, int]  # channels, and how many inputs of each the convolution looks back on
    recurrent: tuple[int, int, int] | None = None  # heads, rows, columns

    def nbytes(self, itemsize: int) -> int:
        """Bytes, where the model's dtype has `itemsize`."""
        return prod(self.conv) * itemsize + (prod(self.recurrent) * _STATE_BYTES if self.recurrent else 0)


class KVShape(NamedTuple):
    """Keys and values of one layer and position."""

    heads: int
    width: int  # of a key
    value_width: int
    window: int | None = None  # positions that a token sees, where it does not see all

    @property
    def numbers(self) -> int:
        """How many there are."""
        return self.heads * (self.width + self.value_width)


class LayerPlan(NamedTuple):
    """One decoder layer."""

    kv: KVShape | None
    state: StateShape | None = None


def layer_plans(config: Mapping[str, Any]) -> Sequence[LayerPlan]:
    """Every decoder layer, from a config.json; raises `KeyError` where that of a family with states leaves gaps."""
    family = family_of(config)
    count: int = config["num_hidden_layers"]
    kv = _kv_shape(config)
    if family.mixer is None:
        own = {int(layer): said for layer, said in config["per_layer_config"].items()} if family.uneven else {}
        shapes = [_overridden(kv, own.get(layer, {})) for layer in range(count)]
        windows = layer_windows(config)
        return [LayerPlan(shape._replace(window=window)) for shape, window in zip(shapes, windows, strict=True)]
    state = _STATES[family.mixer](config)
    if family.beside:
        return [LayerPlan(kv, state)] * count
    return [
        LayerPlan(kv if kind in _ATTENDING else None, state if kind in _REMEMBERING else None)
        for kind in _kinds(config)
    ]


def _kv_shape(config: Mapping[str, Any]) -> KVShape:
    if family_of(config).latent:  # kept as attention reads them, not as the latents they are made of
        width = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
        return KVShape(config["num_attention_heads"], width, config["v_head_dim"])
    width = head_dim(config)
    return KVShape(config.get("num_key_value_heads") or config["num_attention_heads"], width, width)


def _overridden(kv: KVShape, own: Mapping[str, Any]) -> KVShape:
    width, heads = own.get("head_dim"), own.get("num_key_value_heads", kv.heads)
    return KVShape(heads, width or kv.width, width or kv.value_width)


def _kinds(config: Mapping[str, Any]) -> Sequence[str]:
    kinds: Sequence[str] = config.get("layer_types") or config.get("layers_block_type") or []
    kinds = kinds or [_SHORT.get(one, one) for one in config["hybrid_override_pattern"]]
    if unknown := set(kinds) - {*_ATTENDING, *_REMEMBERING, *_FORGETTING}:
        raise KeyError(f"layer_types: {unknown.pop()}")
    return kinds


def has_states(config: Mapping[str, Any]) -> bool:
    """Whether any layer remembers what it has read in a state, and not by position."""
    return family_of(config).mixer is not None


class Beginnings(NamedTuple):
    """Where a later prompt can begin."""

    back: int | None  # behind how many of the newest whole prompt chunks of a slot; None: behind any
    lends: bool  # whether what one slot holds can be copied to another: states stay in theirs


def beginnings_of(config: EngineConfig) -> Beginnings:
    """Those of an engine's stages."""
    if has_states(read_json(Path(config.model) / "config.json")):
        return Beginnings(SNAPSHOTS, lends=False)
    rule = window_rule(config)
    return Beginnings(None if rule is None else rule.back, lends=True)


def kv_bytes_per_position(config: Mapping[str, Any], layers: Sequence[int], sequences: int, itemsize: int) -> int:
    """Bytes of keys and values a position, for `layers` and `sequences` slots."""
    plans = layer_plans(config)
    numbers = sum(kv.numbers for layer in layers if (kv := plans[layer].kv) is not None)
    return numbers * sequences * itemsize


def window_bytes_per_position(config: Mapping[str, Any], layers: Sequence[int], itemsize: int) -> int:
    """The part of `kv_bytes_per_position` that is in layers with a window, for one slot."""
    plans = layer_plans(config)
    held = [kv for layer in layers if (kv := plans[layer].kv) is not None]
    return sum(kv.numbers for kv in held if kv.window is not None) * itemsize


def ring_entries(ahead: int) -> int:
    """How many states by position a slot keeps of each layer, for `ahead` tokens in flight."""
    return ahead + _SPARE


def state_bytes(config: Mapping[str, Any], layers: Sequence[int], ahead: int, itemsize: int) -> int:
    """Bytes of the states of `layers` in one slot, for `ahead` tokens in flight."""
    entries = ring_entries(ahead) + SNAPSHOTS
    plans = layer_plans(config)
    return entries * sum(state.nbytes(itemsize) for layer in layers if (state := plans[layer].state) is not None)


def _gated_delta(config: Mapping[str, Any]) -> StateShape:
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    width, out = config["linear_key_head_dim"], config["linear_value_head_dim"]
    return StateShape((2 * keys * width + values * out, config["linear_conv_kernel_dim"]), (values, width, out))


def _short_convolution(config: Mapping[str, Any]) -> StateShape:
    return StateShape((config["hidden_size"], config["conv_L_cache"]))


def _mamba2(config: Mapping[str, Any]) -> StateShape:
    if "mamba_num_heads" in config:  # Nemotron-H
        heads, width, size = config["mamba_num_heads"], config["mamba_head_dim"], config["ssm_state_size"]
        groups, kernel = config["n_groups"], config["conv_kernel"]
    else:
        heads, width, size = config["mamba_n_heads"], config["mamba_d_head"], config["mamba_d_state"]
        groups, kernel = config["mamba_n_groups"], config["mamba_d_conv"]
    return StateShape((heads * width + 2 * groups * size, kernel), (heads, width, size))


_STATES = {
    "gated_delta": _gated_delta,
    "short_convolution": _short_convolution,
    "mamba2": _mamba2,
}
