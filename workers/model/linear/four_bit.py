"""A linear layer over torch's product with four-bit weights, on CPUs."""

from collections.abc import Iterable, Sequence

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
        return self._sum(flat, self._packed, self._scales)

    def _sum(self, flat: Tensor, planes: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
        output: Tensor | None = None
        for packed, scale in zip(planes, scales, strict=True):
            product = torch.ops.aten._weight_int4pack_mm_for_cpu(flat, packed, self._group, scale).to(torch.float32)
            output = product if output is None else output + product
        assert output is not None
        return output

    def _wide(self, flat: Tensor) -> Tensor:
        """bfloat16 [T, columns] to float32 [T, rows], for many rows."""
        length, columns = flat.shape
        padded = len(self._packed[0])
        whole = padded - padded % ROWS_TOGETHER
        if whole == 0:
            return self._narrow(flat)
        step = max(PIECE // columns // ROWS_TOGETHER, 1) * ROWS_TOGETHER
        pieces = [flat @ self._unpacked(start, min(start + step, whole)) for start in range(0, whole, step)]
        # Offsets, which the upper plane has, are the same for all columns of a group.
        sums = flat.view(length, -1, self._group).sum(-1, dtype=torch.float32)
        product = torch.cat(pieces, dim=1).float() + sums @ self._scales[0][:, :whole, 1].float()
        if whole == padded:
            return product
        left = [packed[whole:] for packed in self._packed], [scale[:, whole:].contiguous() for scale in self._scales]
        return torch.cat((product, self._sum(flat, *left)), dim=1)

    def _unpacked(self, start: int, stop: int) -> Tensor:
        """Rows start..stop-1 of the weights, transposed and without offsets: bfloat16 [columns, rows].

        On CPUs with AVX512 the product's weights lie in units of 64 rows; a unit has, for each column, the first 32
        rows in the low halves of 32 bytes. Two planes are put together first; the lower one has the scale of the whole.
        """
        half = ROWS_TOGETHER // 2
        units = [packed[start:stop].view(-1, len(self._scales[0]), self._group, half) for packed in self._packed]
        count, groups, group, _ = units[0].shape
        scales = self._scales[-1][:, start:stop, 0].reshape(groups, 1, count, ROWS_TOGETHER)
        weights = torch.empty(groups, group, count, ROWS_TOGETHER, dtype=torch.bfloat16)
        for place, values in (
            (slice(half), [unit & 15 for unit in units]),
            (slice(half, None), [unit >> 4 for unit in units]),
        ):
            if len(values) == 1:
                centred = values[0].view(torch.int8) - 8
            else:
                centred = ((values[0] << 4 | values[1]) ^ 128).view(torch.int8)
            torch.mul(centred.permute(1, 2, 0, 3), scales[..., place], out=weights[..., place])
        return weights.view(groups * group, -1)


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
