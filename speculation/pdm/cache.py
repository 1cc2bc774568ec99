"""Keys and values of the draft module for one sequence."""

import torch
from torch import Tensor


class DraftCache:
    """Preallocated keys and values, `[layers, kv_heads, capacity, head_dim]` each; the index is the position.

    Nothing is ever removed: a row is valid until a row at its position is written again, and a pass that starts at
    position p reads only positions before p. Rolling back is therefore starting at an earlier position.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.capacity = capacity
        shape = (layers, kv_heads, capacity, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores rows `[kv_heads, rows, head_dim]` from position `start`; returns views of all rows up to their end.

        Raises `ValueError` where they do not fit.
        """
        end = start + keys.shape[1]
        if end > self.capacity:
            raise ValueError(f"draft cache: position {end - 1} is beyond its capacity of {self.capacity}")
        self.keys[layer, :, start:end] = keys
        self.values[layer, :, start:end] = values
        return self.keys[layer, :, :end], self.values[layer, :, :end]
