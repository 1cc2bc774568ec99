"""One packed weight, and the form in which a linear layer on a CPU holds it; torch-free."""

from collections.abc import Mapping
from enum import Enum
from math import gcd
from typing import Literal

import msgspec

# How integers or small floats lie in the tensors of a checkpoint; `workers/model/linear/layouts.py` reads each.
Layout = Literal["gguf", "awq", "gptq", "pack-quantized", "int8", "fp8", "fp4", "whole"]

PRODUCT_GROUPS = (128, 64, 32)  # columns with one scale, of those that torch's four-bit product knows; widest first
ROW_MULTIPLE = 16  # that product wants the number of rows to be a multiple of this
_ALIGNMENT = 32  # columns: the products read whole vectors


class Form(Enum):
    """How a linear layer on a CPU holds packed weights."""

    PLANES = "four-bit product"  # one layer of four bits, or two for up to 8
    CHANNELS = "eight-bit product"
    HALF = "float16"
    UNPACKING = "as stored, unpacked for every product"


class PackedWeight(msgspec.Struct, frozen=True):
    """A matrix of weights [rows, columns] as several tensors of a checkpoint, or one such matrix for each expert."""

    kind: str  # what people call it
    layout: Layout
    shape: tuple[int, int]
    parts: Mapping[str, str]  # what a tensor is to the layout -> its name in the checkpoint
    nbytes: int  # of all parts, in the file
    bits: int = 0  # of integers; 0 for floats, and for integers that no product takes
    group: int = 0  # columns that share a scale; with `bits`
    signed: bool = False  # integers around zero, so that there is no offset
    ordered: bool = False  # columns are grouped in another order than they lie in
    block: tuple[int, int] = (0, 0)  # of floats: rows and columns that share a scale
    experts: int = 0  # matrices that lie behind each other in every part; 0: a single one, without that dimension
    by_column: bool = False  # of experts: the model has each matrix as [columns, rows]

    @property
    def unpacked_shape(self) -> tuple[int, ...]:
        """That of the model's parameter."""
        matrix = self.shape[::-1] if self.by_column else self.shape
        return (self.experts, *matrix) if self.experts else matrix

    @property
    def product_group(self) -> int:
        """Columns that have one scale in the four-bit product; 0 where it cannot be used."""
        common = gcd(self.group, self.shape[1])
        return next((group for group in PRODUCT_GROUPS if common % group == 0), 0) if self.bits else 0

    def form(self, *, products: bool) -> Form:
        """The form for a CPU with or without packed products; never by measurement, so that all stages agree."""
        if not products:
            return Form.UNPACKING
        columns = self.shape[1]
        if self.bits == 8 and self.signed and self.group == columns and columns % _ALIGNMENT == 0:
            return Form.CHANNELS
        return Form.PLANES if self.product_group else Form.HALF

    def held_bytes(self, *, products: bool) -> int:
        """What linear layers hold of it in memory."""
        rows, columns = self.shape
        matrices = max(self.experts, 1)
        order = 8 * columns if self.ordered else 0
        match self.form(products=products):
            case Form.UNPACKING:
                return self.nbytes
            case Form.CHANNELS:
                return matrices * (rows * columns + 4 * rows)
            case Form.HALF:
                return matrices * rows * columns * 2
            case Form.PLANES:
                padded = rows + -rows % ROW_MULTIPLE
                scales = columns // self.product_group * 4
                return matrices * (planes_of(self.bits) * padded * (columns // 2 + scales) + order)


def planes_of(bits: int) -> int:
    """How many four-bit layers make up weights of `bits` bits."""
    return 1 if bits <= 4 else 2
