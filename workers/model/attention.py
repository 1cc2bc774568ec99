"""Attention over a preallocated KV slice, as a function that transformers' decoder layers call.

The layers get no cache object. The rows that are computed travel to this function through their keyword arguments
instead: a `FrameContext`, which says where a frame's keys and values belong, or what a draft module is trained on.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "echelon"
CONTEXT = "echelon_frame"  # keyword under which the layers pass the context on


def register() -> None:
    """Makes `attend` known to transformers under `NAME`; calling it again changes nothing."""
    AttentionInterface.register(NAME, attend)


class Rows(Protocol):
    """The rows of one pass through some layers, and what each of them sees."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention in the layer with index `layer`.

        `query` is [1, heads, T, head_dim], `key` and `value` [1, kv_heads, T, head_dim], rotated already; returns the
        shape of `query`.
        """
        ...


class FrameContext:
    """Where one frame of T tokens stands: its slot's buffers, its first position, and the masks it needs."""

    def __init__(self, layers: dict[int, tuple[Tensor, Tensor]], position: int, length: int) -> None:
        """`layers` are the slot's keys and values by global layer index; the frame covers `length` tokens."""
        self.layers = layers
        self.position = position
        self.end = position + length
        self._masks: dict[tuple[int | None, int], Tensor] = {}

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

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Writes the frame's keys and values, and attends to every position before the frame's end, causally."""
        keys, values = self.layers[layer]
        keys[:, :, self.position : self.end] = _stored(key, keys.dtype)
        values[:, :, self.position : self.end] = _stored(value, values.dtype)

        first = self.first_key(window)
        _, heads, length, head_dim = query.shape
        kv_heads = key.shape[1]
        repeats = heads // kv_heads
        # Query heads that share a key head become rows of one query: every kernel then reads keys and values once, and
        # the fused kernels that refuse grouped heads together with a mask can still be used. A lone token needs no
        # mask.
        output = scaled_dot_product_attention(
            query.reshape(1, kv_heads, repeats * length, head_dim),
            keys[:, :, first : self.end].to(query.dtype),
            values[:, :, first : self.end].to(query.dtype),
            attn_mask=None if length == 1 else self.mask(window, repeats, query),
            scale=scaling,
        )
        return output.reshape(1, heads, length, head_dim)


def _stored(computed: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values as a cache of `dtype` can hold them: eight bits saturate, where a cast would make NaN."""
    if dtype.itemsize > 1:
        return computed
    largest = torch.finfo(dtype).max
    return computed.clamp(-largest, largest)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What the layers call: the rows that are computed know what they see."""
    rows: Rows = kwargs[CONTEXT]
    layer: int = module.layer_idx  # type: ignore[assignment]
    return rows.attend(layer, query, key, value, scaling, sliding_window).transpose(1, 2), None
