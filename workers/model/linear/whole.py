"""Linear layers over packed weights for which there is no packed product, and embeddings."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from workers.model.linear.layouts import Parts, read_rows, unpack
from workers.shared.packed.weight import PackedWeight

# With AVX2 alone the library takes up to so many rows at a time, and sums one or two in another order than more.
_AVX2_BLOCK = 6


class HalfLinear(nn.Module):
    """Weights in float16, rows and sums in float32, by the library that torch brings for CPUs of x86.

    Rows are filled up to whole blocks of it, so that each has the same result however many there are.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, bias)
        self._block = _AVX2_BLOCK if torch.backends.cpu.get_cpu_capability() == "AVX2" else 1

    def forward(self, rows: Tensor) -> Tensor:
        """[..., columns] to [..., rows of the weights], in the dtype of `rows`."""
        flat = rows.float().reshape(-1, rows.shape[-1])
        count = len(flat)
        if missing := -count % self._block:
            flat = pad(flat, (0, 0, 0, missing))
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(flat, self._packed)
        return product[:count].to(rows.dtype).view(*rows.shape[:-1], -1)


class UnpackingLinear(nn.Module):
    """Keeps the weights as they are stored and unpacks them for every product: slow, and nothing is lost."""

    def __init__(self, weight: PackedWeight, parts: Parts, bias: Tensor | None) -> None:
        super().__init__()
        self._weight = weight
        self._parts = parts
        self._bias = bias

    def forward(self, rows: Tensor) -> Tensor:
        """[..., columns] to [..., rows of the weights], in the dtype of `rows`."""
        return linear(rows, unpack(self._weight, self._parts).to(rows.dtype), self._bias)


class PackedEmbedding(nn.Module):
    """Keeps the rows as they are stored and unpacks those that are asked for."""

    def __init__(self, weight: PackedWeight, parts: Parts, dtype: torch.dtype, scale: float) -> None:
        """`scale` is what the model multiplies its embeddings by."""
        super().__init__()
        self._weight = weight
        ((self._name, self._rows),) = parts.items()
        self._dtype = dtype
        self._scale = torch.tensor(scale).to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        """Ids [1, T] to embeddings [1, T, hidden]."""
        return self.rows(tokens[0]).to(self._dtype)[None] * self._scale

    def rows(self, which: Tensor | slice) -> Tensor:
        """Some rows, [rows, hidden], as they are stored but unpacked."""
        rows = self._rows[which]
        if self._weight.layout == "whole":  # which is rounded where it is the head, too, but not here
            return rows
        return read_rows(self._weight, {self._name: rows}, 0, len(rows))
