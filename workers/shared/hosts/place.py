"""What launchers such as torchrun and Slurm say of a process: which of how many it is, and where the first is. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from workers.shared.errors import ConfigError

# torchrun, and whoever speaks its language, then Slurm.
_RANK = ("RANK", "SLURM_PROCID")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS")
_LOCAL = ("LOCAL_RANK", "SLURM_LOCALID")
_MASTER = ("MASTER_ADDR", "SLURM_LAUNCH_NODE_IPADDR")


@dataclass(frozen=True)
class ProcessPlace:
    """Of one process among those that a launcher has started; None where it does not say."""

    rank: int | None
    world: int | None
    local: int | None
    master: str | None


def read_place(environment: Mapping[str, str]) -> ProcessPlace:
    """The place that the environment gives; raises `ConfigError` naming a variable that is no number."""
    rank, world, local = (_number(environment, names) for names in (_RANK, _WORLD, _LOCAL))
    if rank is not None and world is not None and rank >= world:
        raise ConfigError(f"{_RANK[0]}={rank} must be less than {_WORLD[0]}={world}")
    master = next((environment[name] for name in _MASTER if environment.get(name)), None)
    return ProcessPlace(rank, world, local, master)


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = environment.get(name, "")
        if text and not (text.isascii() and text.isdigit()):
            raise ConfigError(f"{name}={text}: expected a whole number")
        if text:
            return int(text)
    return None
