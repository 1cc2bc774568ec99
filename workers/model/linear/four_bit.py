"""A linear layer over torch's product with four-bit weights, on CPUs."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from workers.model.linear.groups import Groups
from workers.model.linear.wide import PIECE, WIDE_FOUR_BIT, has_wide_products
from workers.shared.packed.weight import ROW_MULTIPLE, PackedWeight, planes_of

ROWS_TOGETHER = 64  # the product's weights are laid out in units of so many rows, or of a divisor of it


class FourBitLinear(nn.Module):
    """Weights of up to 8 bits as a sum of one or two four-bit layers: value = 16 * high + low.

    The product takes rows, scales and offsets in bfloat16 and sums in float32; each row's result is the same however
    many rows there are, up to `WIDE_FOUR_BIT`. More of them, a prompt's chunk, are multiplied with weights that are
    unpacked to bfloat16 piece by piece, on processors that have a product for that.
    """

    def __init__(self, weight: PackedWeight, bias: Tensor | None, order: Tensor | None) -> None:
        """Has no weights before `fill`, which takes columns in `order` [columns], where there is one."""
        super().__init__()
        rows, columns = weight.shape
        self._rows = rows
        self._bits = weight.bits
        self._group = weight.product_group
        self._order = order
        padded = rows + -rows % ROW_MULTIPLE
        planes = planes_of(weight.bits)
        self._packed = [torch.zeros(padded, columns // 2, dtype=torch.uint8) for _ in range(planes)]
        # Of the padding rows the scale is 0, so what their weights are does not matter.
        self._scales = [torch.zeros(columns // self._group, padded, 2, dtype=torch.bfloat16) for _ in range(planes)]
        self._bias = bias

    @property
    def nbytes(self) -> int:
        """Bytes of packed weights, scales and offsets."""
        return sum(tensor.nbytes for tensor in (*self._packed, *self._scales)) + (
            0 if self._order is None else self._order.nbytes
        )

    def fill(self, chunks: Iterable[Groups]) -> "FourBitLinear":
        """Takes the rows from the first on; every chunk but the last has a multiple of `ROWS_TOGETHER` rows."""
        start = 0
        for chunk in chunks:
            for plane, groups in enumerate(_planes(chunk.regrouped(self._group), self._bits)):
                self._put(plane, start, groups)
            start += len(chunk.values)
        return self

    def _put(self, plane: int, start: int, groups: Groups) -> None:
        count = len(groups.values)
        padding = -count % ROW_MULTIPLE
        values = nn.functional.pad(groups.values, (0, 0, 0, padding)).int()
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values, 1)
        self._packed[plane][start : start + count + padding] = packed
        # The product takes 8 from each value before it multiplies.
        offsets = groups.offsets + 8 * groups.scales
        self._scales[plane][:, start : start + count] = torch.stack((groups.scales.T, offsets.T), dim=-1)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., columns] to [..., rows of the weights], in the dtype of `rows`."""
        flat = rows.reshape(-1, rows.shape[-1]).to(torch.bfloat16)
        if self._order is not None:
            flat = flat[:, self._order]
        product = self._wide if len(flat) > WIDE_FOUR_BIT and has_wide_products() else self._narrow
        output = product(flat)[:, : self._rows]
        if self._bias is not None:
            output = output + self._bias
        return output.to(rows.dtype).view(*rows.shape[:-1], self._rows)

    def _narrow(self, flat: Tensor) -> Tensor:
        """bfloat16 [T, columns] to float32 [T, rows]."""
        output: Tensor | None = None
        for packed, scales in zip(self._packed, self._scales, strict=True):
            product = torch.ops.aten._weight_int4pack_mm_for_cpu(flat, packed, self._group, scales).to(torch.float32)
            output = product if output is None else output + product
        assert output is not None
        return output

    def _wide(self, flat: Tensor) -> Tensor:
        """The same for many rows."""
        columns = flat.shape[1]
        step = max(PIECE // columns // ROWS_TOGETHER, 1) * ROWS_TOGETHER
        pieces = [flat @ self._unpacked(start, start + step) for start in range(0, len(self._packed[0]), step)]
        return torch.cat(pieces, dim=1).float()

    def _unpacked(self, start: int, stop: int) -> Tensor:
        """Rows start..stop-1 of the weights, transposed: bfloat16 [columns, rows]."""
        values = [_values(packed[start:stop]) for packed in self._packed]
        whole = values[0] if len(values) == 1 else (values[0] << 4) | values[1]
        middle = 8 if len(values) == 1 else 128
        # With two planes, the lower one has the scale of the whole, and the upper one the offset.
        scales, offsets = self._scales[-1][:, None, start:stop, 0], self._scales[0][:, None, start:stop, 1]
        weights: Tensor = whole.to(torch.bfloat16).sub_(middle).unflatten(0, (-1, self._group))
        return weights.mul_(scales).add_(offsets).flatten(0, 1)


def _values(packed: Tensor) -> Tensor:
    """uint8 [columns, rows] of the product's layout on CPUs with AVX512.

    Units of 64 rows have, for each column, the first 32 of them in the low halves of 32 bytes; what is left of the
    rows has pairs of neighbours.
    """
    rows, columns = len(packed), 2 * packed.shape[1]
    whole = rows - rows % ROWS_TOGETHER
    units = packed[:whole].view(-1, columns, ROWS_TOGETHER // 2)
    values = torch.cat((units & 15, units >> 4), dim=-1).transpose(0, 1).reshape(columns, whole)
    if whole == rows:
        return values
    pairs = packed[whole:].reshape(columns, -1)
    return torch.cat((values, torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(1)), dim=1)


def _planes(groups: Groups, bits: int) -> list[Groups]:
    if planes_of(bits) == 1:
        return [groups]
    # Scales lose bits in bfloat16, so weights must be values around the middle times the scale, and an offset that is
    # small: five bits are put into the middle of eight.
    shift = 128 - (1 << (bits - 1))
    values = groups.values + shift
    offsets = groups.offsets - shift * groups.scales
    nothing = torch.zeros_like(offsets)
    return [Groups(values >> 4, 16 * groups.scales, offsets), Groups(values & 15, groups.scales, nothing)]
