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
from workers.model.linear.whole import HalfLinear, PackedEmbedding, UnpackingLinear
from workers.shared.errors import ConfigError
from workers.shared.packed.weight import Form, PackedWeight

_CHUNK = 1 << 19  # weights unpacked at once


def packed_linear(weight: PackedWeight, parts: Parts, bias: Tensor | None) -> nn.Module:
    """A linear layer on the CPU over packed weights, whose `parts` may be views of a file.

    Raises `ConfigError` where weights are not all numbers.
    """
    match weight.form(products=has_products()):
        case Form.PLANES:
            order = column_order(parts) if weight.ordered else None
            return FourBitLinear(weight, bias, order).fill(_chunks(weight, parts))
        case Form.CHANNELS:
            return ChannelLinear(*weight.shape, bias).fill(_chunks(weight, parts))
        case Form.HALF:
            return HalfLinear(_checked(unpack(weight, parts), weight), bias)
        case Form.UNPACKING:
            _checked(unpack(weight, parts), weight)
            return UnpackingLinear(weight, {name: part.clone() for name, part in parts.items()}, bias)


def packed_embedding(weight: PackedWeight, parts: Parts, dtype: torch.dtype, scale: float) -> PackedEmbedding:
    """An embedding on the CPU over packed rows, of which it keeps a copy; see `PackedEmbedding`.

    Raises `ConfigError` where weights are not all numbers.
    """
    rows, columns = weight.shape
    embedding = PackedEmbedding(weight, {name: part.clone() for name, part in parts.items()}, dtype, scale)
    step = max(_CHUNK // columns, 1)
    for start in range(0, rows, step):
        _checked(embedding.rows(slice(start, start + step)), weight)
    return embedding


def has_products() -> bool:
    """Whether this processor multiplies packed weights."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


def _chunks(weight: PackedWeight, parts: Parts) -> Iterator[Groups]:
    rows, columns = weight.shape
    step = max(_CHUNK // columns // ROWS_TOGETHER, 1) * ROWS_TOGETHER
    for start in range(0, rows, step):
        groups = read_groups(weight, parts, start, min(start + step, rows))
        _checked(groups.scales + groups.offsets, weight)
        yield groups


def _checked(values: Tensor, weight: PackedWeight) -> Tensor:
    if not values.isfinite().all():
        raise ConfigError(
            f"{next(iter(weight.parts.values()))}: unpacked, it has values that are infinite or not numbers; the file "
            f"is damaged"
        )
    return values
