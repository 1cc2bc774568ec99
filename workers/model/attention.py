"""Attention over a preallocated KV slice, as a function that transformers' decoder layers call.

The layers get no cache object. A `FrameContext` travels to this function through their keyword arguments instead, and
says where the frame's keys and values belong.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "echelon"
CONTEXT = "echelon_frame"  # keyword under which the layers pass the context on


def register() -> None:
    """Makes `attend` known to transformers under `NAME`; calling it again changes nothing."""
    AttentionInterface.register(NAME, attend)


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
    """Writes the frame's keys and values, and attends to every position before the frame's end, causally.

    `query` is [1, heads, T, head_dim], `key` and `value` [1, kv_heads, T, head_dim]; returns [1, T, heads, head_dim].
    """
    frame: FrameContext = kwargs[CONTEXT]
    keys, values = frame.layers[module.layer_idx]  # type: ignore[index]
    position, end = frame.position, frame.end
    keys[:, :, position:end] = key
    values[:, :, position:end] = value

    first = frame.first_key(sliding_window)
    _, heads, length, head_dim = query.shape
    kv_heads = key.shape[1]
    repeats = heads // kv_heads
    # Query heads that share a key head become rows of one query: every kernel then reads keys and values once, and
    # the fused kernels that refuse grouped heads together with a mask can still be used. A lone token needs no mask.
    output = scaled_dot_product_attention(
        query.reshape(1, kv_heads, repeats * length, head_dim),
        keys[:, :, first:end],
        values[:, :, first:end],
        attn_mask=None if length == 1 else frame.mask(sliding_window, repeats, query),
        scale=scaling,
    )
    return output.reshape(1, heads, length, head_dim).transpose(1, 2), None
