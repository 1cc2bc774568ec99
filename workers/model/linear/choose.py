"""Which layer serves which packed weights on this machine.

The choice depends on how weights are packed and on what the processor can do, never on a measurement: another choice
after a restart, or on another stage, would change the last bits of what is computed.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from workers.model.linear.channels import ChannelLinear
from workers.model.linear.four_bit import ROWS_TOGETHER, FourBitLinear
from workers.model.linear.groups import Groups
from workers.model.linear.layouts import Parts, column_order, read_groups, unpack
from workers.model.linear.whole import HalfLinear, UnpackingLinear
from workers.shared.packed.weight import Form, PackedWeight

_CHUNK = 1 << 19  # weights unpacked at once


def packed_linear(weight: PackedWeight, parts: Parts, bias: Tensor | None) -> nn.Module:
    """A linear layer on the CPU over packed weights, whose `parts` may be views of a file."""
    match weight.form(products=has_products()):
        case Form.PLANES:
            order = column_order(parts) if weight.ordered else None
            return FourBitLinear(weight, bias, order).fill(_chunks(weight, parts))
        case Form.CHANNELS:
            return ChannelLinear(*weight.shape, bias).fill(_chunks(weight, parts))
        case Form.HALF:
            return HalfLinear(unpack(weight, parts), bias)
        case Form.UNPACKING:
            return UnpackingLinear(weight, {name: part.clone() for name, part in parts.items()}, bias)


def has_products() -> bool:
    """Whether this processor multiplies packed weights."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


def _chunks(weight: PackedWeight, parts: Parts) -> Iterator[Groups]:
    rows, columns = weight.shape
    step = max(_CHUNK // columns // ROWS_TOGETHER, 1) * ROWS_TOGETHER
    for start in range(0, rows, step):
        yield read_groups(weight, parts, start, min(start + step, rows))
