"""Data parallelism under `torchrun`: every process trains on its own batches and gradients are averaged."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import distributed, nn

from workers.shared.errors import ConfigError


def local_device(name: str) -> torch.device:
    """The device called `name`; under `torchrun`, "cuda" is this process's own card.

    Raises `ConfigError` where there is no such device.
    """
    local = os.environ.get("LOCAL_RANK")
    try:
        device = torch.device(f"cuda:{local}" if name == "cuda" and local is not None else name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name!r} is no device: give cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name}: torch finds {torch.cuda.device_count()} CUDA devices here")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name}: give cpu, cuda or cuda:N")
    return device


@dataclass(frozen=True)
class World:
    """This process among those of the run."""

    rank: int
    size: int

    @classmethod
    def join(cls, device: torch.device) -> "World":
        """Joins the group that `torchrun` describes in the environment; a world of one without it."""
        if "RANK" not in os.environ:
            return cls(0, 1)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(distributed.get_rank(), distributed.get_world_size())

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces every gradient by its mean over the processes."""
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)
            parameter.grad /= self.size

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether `flag` is set in any process: all must stop at the same step."""
        if self.size == 1:
            return flag
        flags = torch.tensor(int(flag), device=device)
        distributed.all_reduce(flags, distributed.ReduceOp.MAX)
        return bool(flags.item())

    def wait(self) -> None:
        """Returns when every process has come here."""
        if self.size > 1:
            distributed.barrier()

    def leave(self) -> None:
        """Leaves the group."""
        if self.size > 1:
            distributed.destroy_process_group()
