"""What tokens of a frame do not see, anywhere in a long sequence, at hardly any memory.

Of T tokens at the end of n positions each sees all but those that follow it in the frame. So all such masks of T rows
are the last n columns of one: zeros, and a triangle at the end. Pages that are read and never written take no memory.
"""

import mmap

import torch
from torch import Tensor

_KEPT = 8  # masks; prompts have chunks of one length but for their last, and other frames few lengths


class ChunkMasks:
    """Masks for frames of a sequence on a CPU. Not safe for use by several threads."""

    def __init__(self, max_len: int) -> None:
        """For sequences of up to `max_len` positions."""
        self._max_len = max_len
        self._whole: dict[tuple[int, int, torch.dtype], Tensor] = {}  # the one used last is at the end

    def of(self, length: int, end: int, repeats: int, dtype: torch.dtype) -> Tensor:
        """[repeats * length, end] for the `length` tokens before position `end`, repeated so often: 0 or -inf."""
        key = length, repeats, dtype
        whole = self._whole.pop(key, None)
        if whole is None:
            whole = self._made(length, repeats, dtype)
        self._whole[key] = whole
        if len(self._whole) > _KEPT:
            del self._whole[next(iter(self._whole))]
        return whole[:, self._max_len - end :]

    def _made(self, length: int, repeats: int, dtype: torch.dtype) -> Tensor:
        size = repeats * length * self._max_len * dtype.itemsize
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        whole = torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(repeats, length, self._max_len)
        triangle = torch.full((length, length), -torch.inf, dtype=dtype).triu(1)
        whole[:, :, self._max_len - length :] = triangle
        return whole.flatten(0, 1)
