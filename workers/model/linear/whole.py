"""Linear layers over GGUF blocks for which there is no packed product."""

from typing import Any

import torch
from gguf import GGMLQuantizationType, dequantize
from torch import Tensor, nn
from torch.nn.functional import linear


def unpack(kind: str, packed: Tensor) -> Tensor:
    """float32 weights [rows, columns] of GGUF blocks, bytes [rows, bytes a row] on the CPU."""
    return torch.from_numpy(dequantize(packed.numpy(), GGMLQuantizationType[kind]))


class HalfLinear(nn.Module):
    """Weights in float16, rows and sums in float32, by the library that torch brings for CPUs of x86."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., columns] to [..., rows of the weights], in the dtype of `rows`."""
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows.float(), self._packed)
        return product.to(rows.dtype)


class UnpackingLinear(nn.Module):
    """Keeps the blocks and unpacks them for every product: slow, and nothing is lost."""

    def __init__(self, kind: str, packed: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._kind = kind
        self._packed = packed
        self._bias = bias

    def forward(self, rows: Tensor) -> Tensor:
        """[..., columns] to [..., rows of the weights], in the dtype of `rows`."""
        return linear(rows, unpack(self._kind, self._packed).to(rows.dtype), self._bias)


class PackedEmbedding(nn.Module):
    """Keeps the blocks and unpacks the rows that are asked for."""

    def __init__(self, kind: str, packed: Tensor, dtype: torch.dtype, scale: float) -> None:
        """`scale` is what the model multiplies its embeddings by."""
        super().__init__()
        self._kind = kind
        self._packed = packed
        self._dtype = dtype
        self._scale = torch.tensor(scale).to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        """Ids [1, T] to embeddings [1, T, hidden]."""
        return unpack(self._kind, self._packed[tokens[0]]).to(self._dtype)[None] * self._scale
