"""Keys and values of one stage's layers, addressed by slot and position.

On a CPU a slot is a range of addresses for the longest sequence, and the operating system gives it memory page by page
as positions are written (docs/decisions/0010); layers with a window give back what they will not read again. Attention
sees contiguous tensors either way.
"""

import mmap
from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from workers.decisions.windows import HeldWindow
from workers.model.chunk_masks import ChunkMasks
from workers.shared.frames import Move
from workers.shared.model_files.layers import KVShape
from workers.shared.model_files.windows import WindowRule


class _Buffer:
    """Keys or values of one layer and slot: `[1, heads, rows, width]`."""

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        count = prod(shape)
        self._memory: mmap.mmap | None = None
        if device.type == "cpu" and count:
            self._memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.tensor = torch.frombuffer(self._memory, dtype=torch.uint8).view(dtype).view(shape)
        else:
            self.tensor = torch.zeros(shape, dtype=dtype, device=device)

    def release(self, start: int, stop: int) -> None:
        """Gives back whole pages from row `start` to `stop` of each head."""
        if self._memory is None:
            return
        _, heads, length, width = self.tensor.shape
        row = width * self.tensor.itemsize
        for head in range(0, heads * length * row, length * row):
            first = -(-(head + start * row) // mmap.PAGESIZE) * mmap.PAGESIZE
            last = (head + stop * row) // mmap.PAGESIZE * mmap.PAGESIZE
            if first < last:
                self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)


class KVSlice:
    """Buffers that are written at a position and never cropped.

    Rollback needs no operation: what lies at and behind a frame's end is never read before it is written again. In
    front of the row of the first position there are rows of scratch, for drafts that share a position with another.
    """

    def __init__(
        self,
        shapes: Mapping[int, KVShape],
        *,
        sequences: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
        scratch: int = 0,
        rule: WindowRule | None = None,
    ) -> None:
        """Makes room for the layers with these global indices: `max_len` positions and `scratch` rows a slot.

        By `rule`, layers with a window do not keep all positions.
        """
        self.max_len = max_len
        self.sequences = sequences
        self.scratch = scratch
        self.chunk_masks = ChunkMasks(max_len) if device.type == "cpu" else None  # for frames that attend to a slot
        self._rule = rule
        self._windowed = [] if rule is None else [layer for layer, shape in shapes.items() if shape.window is not None]
        self._held = [HeldWindow(rule) for _ in range(sequences)] if rule is not None else []
        self._buffers = [
            {
                layer: tuple(
                    _Buffer((1, shape.heads, scratch + max_len, width), dtype, device)
                    for width in (shape.width, shape.value_width)
                )
                for layer, shape in shapes.items()
            }
            for _ in range(sequences)
        ]
        # Indexing a tensor costs microseconds; the buffers of each layer and slot are therefore tensors of their own.
        self._layers = [
            {layer: (keys.tensor, values.tensor) for layer, (keys, values) in slot.items()} for slot in self._buffers
        ]

    @property
    def nbytes(self) -> int:
        """Bytes with as much of every slot written as is held at a time."""
        return sum(
            (keys.nbytes + values.nbytes) // (self.scratch + self.max_len) * self._most(layer)
            for layers in self._layers
            for layer, (keys, values) in layers.items()
        )

    def _most(self, layer: int) -> int:
        held = self.max_len if self._rule is None or layer not in self._windowed else self._rule.most
        return self.scratch + held

    def layers(self, sequence: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values of a slot by global layer index, each [1, heads, scratch + max_len, width]."""
        return self._layers[sequence]

    def begin(self, sequence: int, position: int, length: int) -> None:
        """A frame is about to be computed: what no later frame can read is given back.

        Raises `OutOfStep` where the frame would read what has been.
        """
        if self._held and (lost := self._held[sequence].begin(position, length)) is not None:
            start, stop = lost
            for layer in self._windowed:
                for buffer in self._buffers[sequence][layer]:
                    buffer.release(self.scratch + start, self.scratch + stop)

    def copy(self, source: int, target: int, positions: int, of: "KVSlice | None" = None) -> None:
        """Copies the first `positions` from one slot to another, bit by bit; from a slot of another slice if given,
        which has as much scratch.
        """
        others, first = (self if of is None else of)._layers[source], 0
        if self._held:
            self._held[source].lends(positions)
            first = self._held[target].copied(positions)
        for layer, mine in self._layers[target].items():
            held = slice(self.scratch + (first if layer in self._windowed else 0), self.scratch + positions)
            for tensor, other in zip(mine, others[layer], strict=True):
                tensor[:, :, held] = other[:, :, held]

    def move(self, sequence: int, moves: Sequence[Move]) -> None:
        """Copies rows of scratch of a slot to those of positions, bit by bit."""
        for tensors in self._layers[sequence].values():
            for tensor in tensors:
                for slot, position in moves:
                    tensor[:, :, self.scratch + position] = tensor[:, :, slot]

    def release(self, sequence: int, kept: int) -> None:
        """Gives the memory of a slot from position `kept` on back to the system, in whole pages, until written."""
        for buffers in self._buffers[sequence].values():
            for buffer in buffers:
                buffer.release(self.scratch + kept, self.scratch + self.max_len)
