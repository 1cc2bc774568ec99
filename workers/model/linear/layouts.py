"""The weights in the tensors of a packed weight, some rows at a time: how each layout of a checkpoint is read."""

from collections.abc import Mapping

import torch
from gguf import GGMLQuantizationType, dequantize
from torch import Tensor

from workers.model.linear.groups import Groups, decode
from workers.shared.packed.weight import PackedWeight

Parts = Mapping[str, Tensor]
_ROWS_TOGETHER = 64  # chunks begin at multiples of so many rows, so that no word or block of scales is cut

# Of AWQ, which row each four bits of a word belong to.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # and the same below zero


def read_groups(weight: PackedWeight, parts: Parts, start: int, stop: int) -> Groups:
    """The integers of rows start..stop-1, for a weight that has `bits`; `start` is a multiple of `ROWS_TOGETHER`.

    Where the weight is `ordered`, its columns are in the order of `column_order`.
    """
    rows = slice(start, stop)
    match weight.layout:
        case "gguf":
            return decode(weight.kind, parts["blocks"][rows])
        case "awq" | "gptq":
            return _ordered(weight, parts, _transposed(weight, parts, start, stop))
        case "pack-quantized":
            return _ordered(weight, parts, _packed(weight, parts, start, stop))
        case "int8":
            zeros = parts["zeros"][rows].float() if "zeros" in parts else None
            return _around(parts["values"][rows], _scales(weight, parts, start, stop), zeros)
        case "fp4":
            return _mxfp4(parts["values"][rows].flatten(1), parts["scales"][rows])
        case "whole":
            return _rounded(parts["weight"][rows].float(), weight)
        case "fp8":
            raise AssertionError("floats of eight bits are no integers")


def read_rows(weight: PackedWeight, parts: Parts, start: int, stop: int) -> Tensor:
    """The weights of rows start..stop-1 themselves, float32 [rows, columns]; `start` as for `read_groups`."""
    rows = slice(start, stop)
    if weight.layout == "gguf":
        return torch.from_numpy(dequantize(parts["blocks"][rows].numpy(), GGMLQuantizationType[weight.kind]))
    if weight.layout == "fp8":
        return parts["values"][rows].float() * _float_scales(weight, parts)[rows]
    if weight.layout == "fp4" and not weight.bits:
        values = _fp4_values(parts["values"][rows]).unflatten(1, (-1, weight.shape[1] // parts["scales"].shape[1]))
        floats: Tensor = values * (parts["scales"][rows].float() / parts["divisor"])[..., None]
        return floats.flatten(1)
    dense: Tensor = read_groups(weight, parts, start, stop).dense()
    return dense[:, column_order(parts).argsort()] if weight.ordered else dense


def unpack(weight: PackedWeight, parts: Parts) -> Tensor:
    """The whole matrix, float32 [rows, columns]."""
    return read_rows(weight, parts, 0, weight.shape[0])


def column_order(parts: Parts) -> Tensor:
    """Columns by group, and as they lie within one."""
    return parts["order"].argsort(stable=True)


def _ordered(weight: PackedWeight, parts: Parts, groups: Groups) -> Groups:
    return groups._replace(values=groups.values[:, column_order(parts)]) if weight.ordered else groups


def _integers(words: Tensor, bits: int) -> Tensor:
    """int32 [..., n] to uint8 [..., n * 32 / bits], from the lowest bits on."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((words[..., None] >> shifts) & ((1 << bits) - 1)).to(torch.uint8).flatten(-2)


def _transposed(weight: PackedWeight, parts: Parts, start: int, stop: int) -> Groups:
    """AWQ and GPTQ: rows of the weights are columns of the tensors."""
    bits = weight.bits
    words_of = slice(start * bits // 32, -(-stop * bits // 32))
    if weight.layout == "awq":
        values = _awq(parts["words"][:, words_of])
        zeros = _awq(parts["zeros"][:, words_of]).float()
    else:
        values = _integers(parts["words"][:, start:stop].T, bits).T
        stored = parts.get("zeros")
        zeros = _integers((parts["zeros less one"] if stored is None else stored)[:, words_of], bits).float()
        zeros = zeros + 1 if stored is None else zeros
    scales = parts["scales"][:, start:stop].float()
    zeros = zeros[:, : stop - start]
    return Groups(values[:, : stop - start].T.contiguous(), scales.T.contiguous(), (-zeros * scales).T.contiguous())


def _awq(words: Tensor) -> Tensor:
    apart: Tensor = _integers(words, 4).unflatten(-1, (-1, 8))
    return apart[..., torch.tensor(_AWQ_ORDER).argsort()].flatten(-2)


def _packed(weight: PackedWeight, parts: Parts, start: int, stop: int) -> Groups:
    values = _integers(parts["words"][start:stop], weight.bits)
    scales = _scales(weight, parts, start, stop)
    if "zeros" not in parts:
        return Groups(values, scales, -float(1 << (weight.bits - 1)) * scales)
    words = parts["zeros"][start * weight.bits // 32 : -(-stop * weight.bits // 32)]
    zeros = _integers(words.T, weight.bits).T[: stop - start].float()
    return Groups(values, scales, -zeros * scales)


def _around(values: Tensor, scales: Tensor, zeros: Tensor | None) -> Groups:
    """Signed integers of eight bits."""
    offsets = -128 * scales if zeros is None else -(128 + zeros) * scales
    return Groups(values.view(torch.uint8) ^ 128, scales, offsets)


def _scales(weight: PackedWeight, parts: Parts, start: int, stop: int) -> Tensor:
    """float32 [rows, groups], also where all rows share one."""
    scales = parts["scales"].float()
    return scales.reshape(1, 1).expand(stop - start, 1) if scales.numel() == 1 else scales[start:stop]


def _float_scales(weight: PackedWeight, parts: Parts) -> Tensor:
    """float32, for each row and column, or for all columns of a row."""
    scales, (rows, columns), (down, across) = parts["scales"].float(), weight.shape, weight.block
    if not down:
        return scales.reshape(-1, 1).expand(rows, 1)
    return scales.repeat_interleave(down, 0)[:rows].repeat_interleave(across, 1)[:, :columns]


def _fp4_values(packed: Tensor) -> Tensor:
    """uint8 [rows, n] to float32 [rows, 2n]: the low halves of the bytes come first, the highest bit is the sign."""
    halves = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).long()
    return torch.tensor((*_FP4, *(-value for value in _FP4)))[halves]


def _mxfp4(packed: Tensor, exponents: Tensor) -> Groups:
    """Twice a value is an integer; a scale is a power of two."""
    values = (2 * _fp4_values(packed) + 16).to(torch.uint8)
    scales = torch.exp2(exponents.float() - 127) / 2
    return Groups(values, scales, -16 * scales)


def _rounded(rows: Tensor, weight: PackedWeight) -> Groups:
    """To the nearest of evenly spaced values: from the least to the greatest of a group, or around zero."""
    grouped = rows.unflatten(1, (-1, weight.group))
    most = (1 << weight.bits) - 1
    if weight.signed:
        half = most // 2
        scales = (grouped.abs().amax(-1) / half).clamp(min=torch.finfo(torch.float32).tiny)
        values = (grouped / scales[..., None]).round().clamp(-half, half) + (half + 1)
        return Groups(values.to(torch.uint8).flatten(1), scales, -(half + 1) * scales)
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    # As the product will have them: what is rounded here need not be rounded there.
    scales = ((high - low) / most).clamp(min=torch.finfo(torch.float32).tiny).bfloat16().float()
    zeros = (-low / scales).round().clamp(0, most)
    values = ((grouped / scales[..., None]).round() + zeros[..., None]).clamp(0, most)
    return Groups(values.to(torch.uint8).flatten(1), scales, -zeros * scales)
