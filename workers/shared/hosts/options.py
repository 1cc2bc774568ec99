"""The options of `echelon join`."""

from typing import Annotated

from msgspec import Struct

from workers.shared.options.declared import AtLeastOne, NotNegative, about
from workers.shared.options.sources import Program

HOST = "This host"
DEFAULT_PORT = 5550


class JoinOptions(Struct, frozen=True, kw_only=True):
    """Of a host that joins."""

    rank_0: Annotated[
        str,
        about(
            "Engine",
            f"Where `echelon serve --gather-at` listens, as tcp://HOST:PORT; tcp://$MASTER_ADDR:{DEFAULT_PORT} where "
            f"a launcher such as torchrun has set that variable",
            place=True,
        ),
    ] = ""
    token: Annotated[
        str | None, about("Engine", "The group's secret, as `echelon serve` shows it; better in ECHELON_TOKEN")
    ] = None
    address: Annotated[
        str | None,
        about(
            HOST,
            "Name or IP address under which the other hosts reach this one",
            default="that of the interface that leads to rank 0",
        ),
    ] = None
    device: Annotated[
        tuple[str, ...],
        about(
            HOST,
            "A stage for each device of this list, such as cuda:0,cuda:1",
            default="all GPUs, or that of LOCAL_RANK where a launcher has set it; without GPUs cpu",
        ),
    ] = ()
    seats: Annotated[AtLeastOne, about(HOST, "Stages on each device")] = 1
    stage: Annotated[
        NotNegative | None,
        about(
            HOST,
            "Which stage this host's first seat must be; the others follow",
            default="RANK or SLURM_PROCID, if set, else any",
        ),
    ] = None
    local_model: Annotated[
        str | None,
        about(
            HOST,
            "Folder or .gguf file that is the model on this host, where it is elsewhere than on rank 0's",
            metavar="PATH",
        ),
    ] = None
    measure: Annotated[bool, about(HOST, "Measure how fast each device reads weights, so that layers fit it")] = True


JOIN = Program(
    "echelon join", "Hold stages of an engine that `echelon serve --gather-at` starts on another host.", JoinOptions
)
