"""Which layer serves which packed weights on this machine.

The choice depends on the kind of block and on what the processor can do, never on a measurement: another choice after
a restart, or on another stage, would change the last bits of what is computed.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from workers.model.linear.four_bit import ROWS_TOGETHER, FourBitLinear
from workers.model.linear.groups import Groups, decode
from workers.model.linear.whole import HalfLinear, UnpackingLinear, unpack
from workers.shared.model_files.blocks import BITS, held_bytes

_CHUNK = 1 << 21  # weights unpacked at once


def packed_linear(kind: str, packed: Tensor, columns: int, bias: Tensor | None) -> nn.Module:
    """A linear layer on the CPU over GGUF blocks, bytes [rows, bytes a row], of a matrix with so many columns."""
    rows = len(packed)
    if _has_products() and kind in BITS:
        return FourBitLinear(rows, columns, BITS[kind], bias).fill(_chunks(kind, packed, columns))
    if _has_products():
        return HalfLinear(unpack(kind, packed), bias)
    return UnpackingLinear(kind, packed.clone(), bias)


def packed_linear_bytes(kind: str, rows: int, columns: int) -> int:
    """What `packed_linear` holds in memory."""
    return held_bytes(kind, rows, columns, products=_has_products())


def _has_products() -> bool:
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


def _chunks(kind: str, packed: Tensor, columns: int) -> Iterator[Groups]:
    step = max(_CHUNK // columns // ROWS_TOGETHER, 1) * ROWS_TOGETHER
    for start in range(0, len(packed), step):
        yield decode(kind, packed[start : start + step])
