"""Keys and values of one stage's layers, preallocated for every sequence slot."""

import torch
from torch import Tensor


class KVSlice:
    """Buffers that are written at a position and never cropped, copied or freed.

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
        """Allocates room for the global layer indices `layers`."""
        shape = (sequences, len(layers), 1, kv_heads, max_len, head_dim)
        self.max_len = max_len
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        # Indexing a tensor costs microseconds; the views of each layer are therefore made once.
        self._views = [
            {layer: (keys[local], values[local]) for local, layer in enumerate(layers)}
            for keys, values in zip(self._keys, self._values, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._keys.nbytes + self._values.nbytes

    def layers(self, sequence: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values of a slot by global layer index, each [1, kv_heads, max_len, head_dim]."""
        return self._views[sequence]

    def copy(self, source: int, target: int, positions: int, of: "KVSlice | None" = None) -> None:
        """Copies the first `positions` from one slot to another, bit by bit; from a slot of another slice if given."""
        other = self if of is None else of
        for mine, others in ((self._keys, other._keys), (self._values, other._values)):
            mine[target, ..., :positions, :] = others[source, ..., :positions, :]
