"""The options of this package's own commands. Those of bench, simulate, distill and train are with their programs."""

from typing import Annotated

from msgspec import Struct

from server.settings import ServerOptions
from workers.shared.options.declared import Port, about, within
from workers.shared.options.engine import EngineOptions, ModelArgument
from workers.shared.options.sources import Program

NETWORK = "Processes started one by one"


class ServeOptions(ModelArgument, frozen=True, kw_only=True):
    """Of `echelon serve`."""

    api: Annotated[ServerOptions, within()] = ServerOptions()
    engine: Annotated[EngineOptions, within()] = EngineOptions()


class PlanOptions(ServeOptions, frozen=True, kw_only=True):
    """Of `echelon plan`: those of `serve`, and where the processes run."""

    hosts: Annotated[
        tuple[str, ...],
        about(NETWORK, "Where rank 0 and then each stage run", default="engine,stage-0,stage-1, as many as stages"),
    ] = ()
    base_port: Annotated[Port, about(NETWORK, "First of the TCP ports that the processes listen on")] = 5550
    out: Annotated[
        str | None,
        about(
            NETWORK,
            "Folder for engine.json and server.json",
            default="engine.json goes to standard output",
            metavar="DIR",
        ),
    ] = None


class CheckOptions(Struct, frozen=True, kw_only=True):
    """Of `echelon check-config`."""

    file: Annotated[str, about("File", "Options for serve or plan (TOML or JSON), or an engine.json", place=True)]


SERVE = Program(
    "echelon serve", "Serve MODEL over an OpenAI-compatible API, its layers split over pipeline stages.", ServeOptions
)
PLAN = Program(
    "echelon plan",
    "Write the configuration of processes that are started one by one, in containers or on several machines.",
    PlanOptions,
)
CHECK = Program(
    "echelon check-config", "Say what would start, where, and with how much memory; start nothing.", CheckOptions
)
