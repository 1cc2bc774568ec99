"""Keys and values of one stage's layers, addressed by slot and position.

On a CPU a slot is a range of addresses for the longest sequence, and the operating system gives it memory page by page
as positions are written (docs/decisions/0008). Attention sees one contiguous tensor either way.
"""

import mmap
from math import prod

import torch
from torch import Tensor


class KVSlice:
    """Buffers that are written at a position and never cropped or moved.

    Rollback needs no operation: what lies at and behind a frame's end is never read before it is written again.
    """

    def __init__(
        self,
        layers: range,
        *,
        sequences: int,
        kv_heads: int,
        max_len: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Makes room for the global layer indices `layers` in so many slots."""
        shape = (2, len(layers), 1, kv_heads, max_len, head_dim)  # keys and values
        self.max_len = max_len
        self._row_bytes = head_dim * dtype.itemsize
        self._runs = 2 * len(layers) * kv_heads  # of consecutive positions
        self._memory = [
            mmap.mmap(-1, max(1, prod(shape) * dtype.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for _ in range(sequences if device.type == "cpu" else 0)
        ]
        self._slots = [
            torch.frombuffer(memory, dtype=torch.uint8, count=prod(shape) * dtype.itemsize).view(dtype).view(shape)
            if prod(shape)
            else torch.empty(shape, dtype=dtype)
            for memory in self._memory
        ] or [torch.zeros(shape, dtype=dtype, device=device) for _ in range(sequences)]
        # Indexing a tensor costs microseconds; the views of each layer are therefore made once.
        self._views = [
            {layer: (slot[0, local], slot[1, local]) for local, layer in enumerate(layers)} for slot in self._slots
        ]

    @property
    def nbytes(self) -> int:
        """Bytes with every position of every slot written."""
        return sum(slot.nbytes for slot in self._slots)

    def layers(self, sequence: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values of a slot by global layer index, each [1, kv_heads, max_len, head_dim]."""
        return self._views[sequence]

    def copy(self, source: int, target: int, positions: int, of: "KVSlice | None" = None) -> None:
        """Copies the first `positions` from one slot to another, bit by bit; from a slot of another slice if given."""
        other = self if of is None else of
        self._slots[target][..., :positions, :] = other._slots[source][..., :positions, :]

    def release(self, sequence: int, kept: int) -> None:
        """Gives the memory of a slot from position `kept` on back to the system, in whole pages, until written."""
        if not self._memory:
            return
        memory, run = self._memory[sequence], self.max_len * self._row_bytes
        for start in range(0, self._runs * run, run):
            first = -(-(start + kept * self._row_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
            last = (start + run) // mmap.PAGESIZE * mmap.PAGESIZE
            if first < last:
                memory.madvise(mmap.MADV_DONTNEED, first, last - first)
