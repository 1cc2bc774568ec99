"""Keys and values of one stage's layers, preallocated for every sequence slot."""

from collections.abc import Mapping

import torch
from torch import Tensor

from workers.shared.model_files.layers import KVShape


class KVSlice:
    """Buffers that are written at a position and never cropped, copied or freed.

    Rollback needs no operation: what lies at and behind a frame's end is never read before it is written again.
    """

    def __init__(
        self,
        shapes: Mapping[int, KVShape],
        *,
        sequences: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocates room for the layers with these global indices."""
        self.max_len = max_len

        def buffer(heads: int, width: int) -> Tensor:
            return torch.zeros((1, heads, max_len, width), dtype=dtype, device=device)

        # Indexing a tensor costs microseconds; the buffers of each layer and slot are therefore tensors of their own.
        self._layers = [
            {
                layer: (buffer(shape.heads, shape.width), buffer(shape.heads, shape.value_width))
                for layer, shape in shapes.items()
            }
            for _ in range(sequences)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(keys.nbytes + values.nbytes for layers in self._layers for keys, values in layers.values())

    def layers(self, sequence: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values of a slot by global layer index, each [1, heads, max_len, width]."""
        return self._layers[sequence]
