"""Attention over a preallocated KV slice, as a function that transformers' decoder layers call.

The layers get no cache object. The rows that are computed travel to this function through their keyword arguments
instead: a `FrameContext`, which says where a frame's keys and values belong, or what a draft module is trained on.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from workers.model.states import FrameStates

NAME = "echelon"
CONTEXT = "echelon_frame"  # keyword under which the layers pass the context on


def register() -> None:
    """Makes `attend` known to transformers under `NAME`; calling it again changes nothing."""
    AttentionInterface.register(NAME, attend)


class Rules(NamedTuple):
    """How a layer attends, besides causally."""

    scaling: float  # what scores are multiplied by
    window: int | None = None  # how many positions a token sees, itself included
    softcap: float | None = None  # scores are bent into -softcap..softcap
    sinks: Tensor | None = None  # [heads]: a score that takes its part of the softmax and has no value


class Rows(Protocol):
    """The rows of one pass through some layers, and what each of them sees."""

    @property
    def positions(self) -> Tensor:
        """Of the rows, [1, rows]."""
        ...

    @property
    def states(self) -> FrameStates | None:
        """What layers that keep a state begin with, and leave."""
        ...

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """Attention in the layer with index `layer`.

        `query` is [1, heads, T, head_dim], `key` and `value` [1, kv_heads, T, head_dim], rotated already; returns the
        shape of `query`.
        """
        ...


class FrameContext:
    """Where one frame of T tokens stands: its slot's buffers, its first position, and the masks it needs."""

    def __init__(
        self,
        layers: dict[int, tuple[Tensor, Tensor]],
        position: int,
        length: int,
        states: FrameStates | None = None,
        device: torch.device | None = None,
    ) -> None:
        """`layers` are the slot's keys and values by global layer index; the frame covers `length` tokens."""
        self.layers = layers
        self.states = states
        self.position = position
        self.end = position + length
        self._device = device
        self._positions: Tensor | None = None
        self._masks: dict[tuple[int | None, int], Tensor] = {}

    @property
    def positions(self) -> Tensor:
        """Of the frame's tokens, [1, T]."""
        if self._positions is None:
            self._positions = torch.arange(self.position, self.end, device=self._device)[None]
        return self._positions

    def first_key(self, window: int | None) -> int:
        """The first position that any token of the frame looks at; a window counts the token itself."""
        return 0 if window is None else max(0, self.position - window + 1)

    def mask(self, window: int | None, repeats: int, like: Tensor) -> Tensor:
        """What to add to the scores: [repeats * T, end - first_key], 0 or -inf, of the dtype and device of `like`.

        The T rows are repeated for each query head that shares a key head. Made once a frame for all alike layers.
        """
        mask = self._masks.get((window, repeats))
        if mask is None:
            query = torch.arange(self.position, self.end, device=like.device)[:, None]
            key = torch.arange(self.first_key(window), self.end, device=like.device)[None, :]
            hidden = key > query
            if window is not None:
                hidden |= key <= query - window
            mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
            mask = mask.masked_fill(hidden, -torch.inf).repeat(repeats, 1)
            self._masks[window, repeats] = mask
        return mask

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """Writes the frame's keys and values, and attends to every position before the frame's end, causally."""
        keys, values = self.layers[layer]
        keys[:, :, self.position : self.end] = stored(key, keys.dtype)
        values[:, :, self.position : self.end] = stored(value, values.dtype)
        first, repeats = self.first_key(rules.window), query.shape[1] // key.shape[1]
        # A lone token needs no mask.
        mask = None if query.shape[2] == 1 else self.mask(rules.window, repeats, query)
        return attend_over(query, keys[:, :, first : self.end], values[:, :, first : self.end], mask, rules)


def attend_over(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, rules: Rules) -> Tensor:
    """Attention of `query` [1, heads, T, head_dim] over the held keys and values [1, kv_heads, n, width].

    `mask` [heads / kv_heads * T, n] is added to the scores. Returns [1, heads, T, width of the values].
    """
    _, heads, length, head_dim = query.shape
    kv_heads = keys.shape[1]
    # Query heads that share a key head become rows of one query: every kernel then reads keys and values once, and
    # the fused kernels that refuse grouped heads together with a mask can still be used.
    rows = query.reshape(1, kv_heads, heads // kv_heads * length, head_dim)
    seen, read = keys.to(query.dtype), values.to(query.dtype)
    if rules.softcap is None and rules.sinks is None:
        output = scaled_dot_product_attention(rows, seen, read, attn_mask=mask, scale=rules.scaling)
    else:
        output = _softmax_attention(rows, seen, read, mask, rules)
    return output.reshape(1, heads, length, read.shape[-1])


def stored(computed: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values as a cache of `dtype` can hold them: eight bits saturate, where a cast would make NaN."""
    if dtype.itemsize > 1:
        return computed
    largest = torch.finfo(dtype).max
    return computed.clamp(-largest, largest)


def _softmax_attention(rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, rules: Rules) -> Tensor:
    """What the fused kernels cannot do; shapes as theirs, the softmax in float32."""
    scores = rows @ keys.transpose(2, 3) * rules.scaling
    if rules.softcap is not None:
        scores = torch.tanh(scores / rules.softcap) * rules.softcap
    if mask is not None:
        scores = scores + mask
    if rules.sinks is None:
        return scores.softmax(-1, dtype=torch.float32).to(values.dtype) @ values
    _, kv_heads, count, _ = rows.shape
    repeats = rules.sinks.numel() // kv_heads
    sinks = rules.sinks.reshape(1, kv_heads, repeats, 1).expand(1, kv_heads, repeats, count // repeats)
    with_sink = torch.cat([scores, sinks.reshape(1, kv_heads, count, 1).to(scores.dtype)], dim=-1)
    shares = with_sink.softmax(-1, dtype=torch.float32)[..., :-1]
    return shares.to(values.dtype) @ values


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What the layers call: the rows that are computed know what they see."""
    rows: Rows = kwargs[CONTEXT]
    layer: int = module.layer_idx  # type: ignore[assignment]
    rules = Rules(scaling, sliding_window, softcap, s_aux)
    return rows.attend(layer, query, key, value, rules).transpose(1, 2), None
