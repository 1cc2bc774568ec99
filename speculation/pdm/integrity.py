"""Weights as they were written: a checksum of a draft module, and no values that cannot be meant."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from msgspec.structs import fields
from torch import Tensor

from speculation.pdm.config import ModuleConfig
from workers.shared.errors import ConfigError


def checksum(config: ModuleConfig, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over weights on the CPU and what decides how they are read; hexadecimal.

    The target's name and the numbers of stages do not count: they may be edited. Nor do fields at their defaults, so
    that a field that is new in this version changes nothing.
    """
    read_as = msgspec.structs.replace(config, target="", stages=(), sha256=None)
    said = {field.name: value for field in fields(read_as) if (value := getattr(read_as, field.name)) != field.default}
    digest = hashlib.sha256(msgspec.json.encode(said))
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        content: Any = tensor.reshape(-1).view(torch.uint8).numpy()
        digest.update(content)
    return digest.hexdigest()


def check_values(tensors: Mapping[str, Tensor], source: str) -> None:
    """Raises `ConfigError` naming a tensor that is not of floating point, or holds infinities or NaN."""
    for name, tensor in sorted(tensors.items()):
        if not tensor.is_floating_point():
            raise ConfigError(f"{source}: {name} is {tensor.dtype}; weights are of floating point")
        if not bool(tensor.isfinite().all()):
            raise ConfigError(f"{source}: {name} holds NaN or infinite values; train or fetch the module again")
