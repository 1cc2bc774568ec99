"""Attention over a preallocated KV slice, as a function that transformers' decoder layers call.

The layers get no cache object. The rows that are computed travel to this function through their keyword arguments
instead: a `FrameContext`, which says where a frame's keys and values belong, or what a draft module is trained on.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from workers.model.chunk_masks import ChunkMasks
from workers.model.states import FrameStates
from workers.shared.frames import REAL, Branches, Path

NAME = "echelon"
CONTEXT = "echelon_frame"  # keyword under which the layers pass the context on
_SCORES = 1 << 24  # computed at once where no fused kernel does, of all heads


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


class MaskedRows(ABC):
    """Rows whose masks are made once for all alike layers."""

    def __init__(self) -> None:
        self._masks: dict[tuple[int | None, int], Tensor] = {}

    def mask(self, window: int | None, repeats: int, like: Tensor) -> Tensor:
        """What to add to the scores: [repeats * T, rows that are read], 0 or -inf, of the dtype and device of `like`.

        The T rows are repeated for each query head that shares a key head.
        """
        mask = self._masks.get((window, repeats))
        if mask is None:
            hidden = self._hidden(window, like.device)
            mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
            mask = mask.masked_fill(hidden, -torch.inf).repeat(repeats, 1)
            self._masks[window, repeats] = mask
        return mask

    @abstractmethod
    def _hidden(self, window: int | None, device: torch.device) -> Tensor:
        """What each row does not see of what is read: bool [T, rows that are read]."""


def unseen(rows: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """Whether tokens at the positions `rows` [T] do not see those at `keys` [n]: bool [T, n]."""
    row, key = rows[:, None], keys[None, :]
    hidden = key > row
    if window is not None:
        hidden |= key <= row - window
    return hidden


class FrameContext(MaskedRows):
    """Where one frame of T tokens stands: its slot's buffers, its first position, and the masks it needs."""

    def __init__(
        self,
        layers: dict[int, tuple[Tensor, Tensor]],
        position: int,
        length: int,
        states: FrameStates | None = None,
        device: torch.device | None = None,
        scratch: int = 0,
        chunk_masks: ChunkMasks | None = None,
    ) -> None:
        """`layers` are the slot's keys and values by global layer index; the frame covers `length` tokens.

        In the buffers, `scratch` rows precede that of position 0. Without `chunk_masks` the frame makes its own.
        """
        super().__init__()
        self._chunk_masks = chunk_masks
        self.layers = layers
        self.states = states
        self.position = position
        self.end = position + length
        self._scratch = scratch
        self._last = scratch + self.end
        self._written = slice(scratch + position, self._last)
        self._masked = length > 1  # a lone token sees all that is read
        self._device = device
        self._positions: Tensor | None = None

    @property
    def positions(self) -> Tensor:
        """Of the frame's tokens, [1, T]."""
        if self._positions is None:
            self._positions = torch.arange(self.position, self.end, device=self._device)[None]
        return self._positions

    def first_row(self, window: int | None) -> int:
        """The first row of the buffers that is read; a window counts the token itself."""
        return self._scratch + (0 if window is None else max(0, self.position - window + 1))

    def mask(self, window: int | None, repeats: int, like: Tensor) -> Tensor:
        """See `MaskedRows`."""
        if window is not None or self._chunk_masks is None:
            return super().mask(window, repeats, like)
        return self._chunk_masks.of(self.end - self.position, self.end, repeats, like.dtype)

    def _hidden(self, window: int | None, device: torch.device) -> Tensor:
        """See `MaskedRows`."""
        rows = torch.arange(self.position, self.end, device=device)
        keys = torch.arange(self.first_row(window) - self._scratch, self.end, device=device)
        return unseen(rows, keys, window)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """Writes the frame's keys and values, and attends to what each of its rows sees."""
        keys, values = self.layers[layer]
        keys[:, :, self._written] = stored(key, keys.dtype)
        values[:, :, self._written] = stored(value, values.dtype)
        first, repeats = self.first_row(rules.window), query.shape[1] // key.shape[1]
        mask = self.mask(rules.window, repeats, query) if self._masked else None
        return attend_over(query, keys[:, :, first : self._last], values[:, :, first : self._last], mask, rules)


class TreeContext(FrameContext):
    """Of a frame whose rows are nodes of a tree: each sees what is final, and the nodes on its way to the root.

    Rows are rotated by their true positions and a window counts positions, so it does not matter which slot of scratch
    a node has. What is read begins with all of scratch; what a row does not see there is masked.
    """

    def __init__(
        self, layers: dict[int, tuple[Tensor, Tensor]], branches: Branches, device: torch.device, scratch: int
    ) -> None:
        """`layers`, `device` and `scratch` are as in `FrameContext`."""
        super().__init__(layers, branches.base, branches.end - branches.base, None, device, scratch)
        self._branches = branches
        self._places = torch.tensor([self._rows(path)[-1] for path in branches.paths], device=device)

    @property
    def positions(self) -> Tensor:
        """Of the rows, [1, T]."""
        if self._positions is None:
            last = [self._branches.base + len(path) - 1 for path in self._branches.paths]
            self._positions = torch.tensor([last], device=self._device)
        return self._positions

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """See `FrameContext`."""
        keys, values = self.layers[layer]
        for held, computed in ((keys, key), (values, value)):
            put(held, self._places, computed)
        mask = self.mask(rules.window, query.shape[1] // key.shape[1], query)
        return attend_over(query, keys[:, :, : self._last], values[:, :, : self._last], mask, rules)

    def _rows(self, path: Path) -> list[int]:
        """The rows of the buffers that hold the nodes of a path."""
        first = self._scratch + self._branches.base
        return [first + depth if slot == REAL else slot for depth, slot in enumerate(path)]

    def _hidden(self, window: int | None, device: torch.device) -> Tensor:
        """See `FrameContext`."""
        base, scratch = self._branches.base, self._scratch
        hidden = torch.ones(len(self._branches.paths), self._last, dtype=torch.bool)
        for row, path in enumerate(self._branches.paths):
            oldest = 0 if window is None else max(0, base + len(path) - window)
            hidden[row, scratch + oldest : scratch + base] = False
            hidden[row, self._rows(path)[max(0, oldest - base) :]] = False
        return hidden.to(device)


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


def put(held: Tensor, places: Tensor, computed: Tensor) -> None:
    """Writes `computed` [1, kv_heads, T, width] to the rows of `held` with the indices `places` [T]."""
    fitting = stored(computed, held.dtype).to(held.dtype)
    if held.dtype.itemsize == 1:  # devices copy eight bits by index, but not by that name
        held, fitting = held.view(torch.uint8), fitting.view(torch.uint8)
    held.index_copy_(2, places, fitting)


def _softmax_attention(rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, rules: Rules) -> Tensor:
    """What the fused kernels cannot do; shapes as theirs, the softmax in float32.

    Some rows at a time, fewer behind longer sequences: the scores of all would be most of a stage's memory.
    """
    _, kv_heads, count, _ = rows.shape
    sinks = rules.sinks
    if sinks is not None:
        repeats = sinks.numel() // kv_heads
        sinks = sinks.reshape(1, kv_heads, repeats, 1).expand(1, kv_heads, repeats, count // repeats)
        sinks = sinks.reshape(1, kv_heads, count, 1)
    together = max(_SCORES // (kv_heads * keys.shape[2]), 1)
    outputs = []
    for start in range(0, count, together):
        some = slice(start, start + together)
        scores = rows[:, :, some] @ keys.transpose(2, 3) * rules.scaling
        if rules.softcap is not None:
            scores = torch.tanh(scores / rules.softcap) * rules.softcap
        if mask is not None:
            scores = scores + mask[some]
        outputs.append(_shares(scores, None if sinks is None else sinks[:, :, some]).to(values.dtype) @ values)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def _shares(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax, in float32, of `scores` [1, kv_heads, rows, n]; `sinks` [1, kv_heads, rows, 1] take their part."""
    if sinks is None:
        return scores.softmax(-1, dtype=torch.float32)
    return torch.cat([scores, sinks.to(scores.dtype)], dim=-1).softmax(-1, dtype=torch.float32)[..., :-1]


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
