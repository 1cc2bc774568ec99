"""Weights in groups that share a scale and an offset: what blocks of 4, 5 and 8 bits have in common."""

from typing import NamedTuple

import torch
from torch import Tensor

from workers.shared.model_files.blocks import BLOCKS


class Groups(NamedTuple):
    """Weights [rows, columns] as value * scale + offset."""

    values: Tensor  # uint8 [rows, columns], below 2**bits
    scales: Tensor  # float32 [rows, groups]
    offsets: Tensor  # float32 [rows, groups]

    def dense(self) -> Tensor:
        """The weights themselves, float32 [rows, columns]."""
        grouped = self.values.unflatten(1, (self.scales.shape[1], -1)).float()
        dense: Tensor = grouped * self.scales[..., None] + self.offsets[..., None]
        return dense.flatten(1)

    def regrouped(self, size: int) -> "Groups":
        """The same with groups of `size` columns, a divisor of theirs."""
        repeats = self.values.shape[1] // self.scales.shape[1] // size
        return Groups(self.values, *(t.repeat_interleave(repeats, 1) for t in (self.scales, self.offsets)))


def decode(kind: str, packed: Tensor) -> Groups:
    """The groups in GGUF blocks of `kind`, one of `BITS`: bytes [rows, bytes a row]."""
    rows = len(packed)
    parts = packed.view(rows, -1, BLOCKS[kind].nbytes)
    values, scales, offsets = _DECODERS[kind](parts)
    return Groups(values.reshape(rows, -1), scales.reshape(rows, -1), offsets.reshape(rows, -1))


_Parts = tuple[Tensor, Tensor, Tensor]


def _half(parts: Tensor, start: int) -> Tensor:
    """The float16 at byte `start` of each block, as float32 [rows, blocks, 1]."""
    return parts[..., start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(parts: Tensor) -> Tensor:
    """[..., n] bytes to [..., 2n] values: the low halves of all bytes, then the high ones."""
    return torch.cat((parts & 15, parts >> 4), dim=-1)


def _bits(parts: Tensor) -> Tensor:
    """[..., n] bytes to [..., 8n] values of 0 or 1, from the lowest bit of the first byte on."""
    return ((parts[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(-2)


def _q4_0(parts: Tensor) -> _Parts:
    scale = _half(parts, 0)
    return _nibbles(parts[..., 2:]), scale, -8 * scale


def _q4_1(parts: Tensor) -> _Parts:
    return _nibbles(parts[..., 4:]), _half(parts, 0), _half(parts, 2)


def _q5_0(parts: Tensor) -> _Parts:
    scale = _half(parts, 0)
    return _nibbles(parts[..., 6:]) | _bits(parts[..., 2:6]) << 4, scale, -16 * scale


def _q5_1(parts: Tensor) -> _Parts:
    return _nibbles(parts[..., 8:]) | _bits(parts[..., 4:8]) << 4, _half(parts, 0), _half(parts, 2)


def _q8_0(parts: Tensor) -> _Parts:
    scale = _half(parts, 0)
    return parts[..., 2:] ^ 128, scale, -128 * scale  # int8 plus 128


def _super_scales(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and offsets [rows, blocks, 8] of a K block: 6 bits each in 12 bytes, times two float16 numbers."""
    low, high, mixed = parts[..., 4:8], parts[..., 8:12], parts[..., 12:16]
    scales = torch.cat((low & 63, (mixed & 15) | (low >> 6) << 4), dim=-1)
    offsets = torch.cat((high & 63, (mixed >> 4) | (high >> 6) << 4), dim=-1)
    return scales * _half(parts, 0), offsets * -_half(parts, 2)


def _super_values(parts: Tensor) -> Tensor:
    """[..., 128] bytes to [..., 8, 32] values: each 32 bytes hold a group in their low and one in their high halves."""
    chunks = parts.unflatten(-1, (4, 1, 32))
    return torch.cat((chunks & 15, chunks >> 4), dim=-2).flatten(-3, -2)


def _q4_k(parts: Tensor) -> _Parts:
    return _super_values(parts[..., 16:]), *_super_scales(parts)


def _q5_k(parts: Tensor) -> _Parts:
    fifth = (parts[..., None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None]) & 1  # bit g is of group g
    return _super_values(parts[..., 48:]) | fifth << 4, *_super_scales(parts)


_DECODERS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q5_K": _q5_k,
    "Q8_0": _q8_0,
}
