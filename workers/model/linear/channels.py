"""A linear layer over torch's product with eight-bit weights, on CPUs."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from workers.model.linear.groups import Groups
from workers.model.linear.wide import PIECE, WIDE_EIGHT_BIT, has_wide_products


class ChannelLinear(nn.Module):
    """Weights as signed integers of 8 bits, with one scale a row.

    The product takes rows in bfloat16 and sums in float32; scales are applied in float32. Each row's result is the same
    however many rows there are, up to `WIDE_EIGHT_BIT`. More of them, a prompt's chunk, are multiplied with weights in
    bfloat16, which eight bits fit into, converted piece by piece, on processors that have a product for that.
    """

    def __init__(self, rows: int, columns: int, bias: Tensor | None) -> None:
        """Has no weights before `fill`; `columns` must be a multiple of 32."""
        super().__init__()
        self._weights = torch.empty(rows, columns, dtype=torch.int8)
        self._scales = torch.empty(rows)
        self._ones = torch.ones(rows, dtype=torch.bfloat16)
        self._bias = bias

    @property
    def nbytes(self) -> int:
        """Bytes of weights and scales."""
        return self._weights.nbytes + self._scales.nbytes

    def fill(self, chunks: Iterable[Groups]) -> "ChannelLinear":
        """Takes the rows from the first on: values around 128, one group a row."""
        start = 0
        for chunk in chunks:
            stop = start + len(chunk.values)
            self._weights[start:stop] = (chunk.values ^ 128).view(torch.int8)
            self._scales[start:stop] = chunk.scales[:, 0]
            start = stop
        return self

    def forward(self, rows: Tensor) -> Tensor:
        """[..., columns] to [..., rows of the weights], in the dtype of `rows`."""
        flat = rows.reshape(-1, rows.shape[-1]).to(torch.bfloat16)
        product = self._wide if len(flat) > WIDE_EIGHT_BIT and has_wide_products() else self._narrow
        output: Tensor = product(flat).to(torch.float32) * self._scales
        if self._bias is not None:
            output = output + self._bias
        return output.to(rows.dtype).view(*rows.shape[:-1], -1)

    def _narrow(self, flat: Tensor) -> Tensor:
        """bfloat16 [T, columns] to bfloat16 [T, rows]."""
        product: Tensor = torch.ops.aten._weight_int8pack_mm(flat, self._weights, self._ones)
        return product

    def _wide(self, flat: Tensor) -> Tensor:
        """The same for many rows."""
        pieces = self._weights.split(max(PIECE // flat.shape[1], 1))
        return torch.cat([linear(flat, piece.to(torch.bfloat16)) for piece in pieces], dim=1)
