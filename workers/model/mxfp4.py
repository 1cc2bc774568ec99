"""Experts in MXFP4 (OCP Microscaling Formats, 1.0): numbers of four bits in blocks of 32 that share a power of two.

A checkpoint stores such a parameter as `NAME_blocks`, uint8 [experts, rows, blocks, 16], two numbers a byte, the lower
four bits first, and `NAME_scales`, uint8 [experts, rows, blocks], exponents with a bias of 127.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

BLOCKS, SCALES = "_blocks", "_scales"
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_BIAS = 127


def unpack_experts(blocks: Tensor, scales: Tensor) -> Tensor:
    """[experts, columns, rows], as modules hold them; both arguments in the dtype of the result."""
    return torch.stack([_unpack(*expert).T for expert in zip(blocks, scales, strict=True)])


def _unpack(blocks: Tensor, scales: Tensor) -> Tensor:
    """[rows, columns] of one expert."""
    table = torch.tensor(_E2M1, dtype=blocks.dtype, device=blocks.device)
    codes = blocks.to(torch.int32)
    numbers = torch.stack([table[codes & 15], table[codes >> 4]], dim=-1).flatten(2)  # [rows, blocks, 32]
    return torch.ldexp(numbers, (scales.to(torch.int32) - _BIAS)[..., None]).flatten(1)


class Mxfp4Converter:
    """In the place of one of transformers' converters: blocks and scales to the parameter."""

    source_patterns: Sequence[str] = (BLOCKS, SCALES)
    target_patterns: Sequence[str] = ("",)

    @property
    def operations(self) -> Sequence["Mxfp4Converter"]:
        """The only one."""
        return (self,)

    def convert(self, tensors: Mapping[str, Sequence[Tensor]], **_: Any) -> dict[str, Tensor]:
        """`tensors` by source pattern, one each."""
        (blocks,), (scales,) = tensors[BLOCKS], tensors[SCALES]
        return {"": unpack_experts(blocks, scales)}
