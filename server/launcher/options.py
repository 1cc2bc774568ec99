"""The options of this package's own commands. Those of bench, simulate, distill and train are with their programs."""

from typing import Annotated, Literal

from msgspec import Struct

from server.launcher.speculative_config import ELSEWHERE
from server.settings import ServerOptions
from workers.shared.options.declared import NotNegative, Port, about, within
from workers.shared.options.engine import EngineOptions, ModelArgument
from workers.shared.options.sources import Program

HOSTS = "Several hosts"
NETWORK, LOG = "Processes started one by one", "Log"


class ProcessOptions(ModelArgument, frozen=True, kw_only=True):
    """Of everything that is started."""

    revision: Annotated[
        str | None, about("Model", "Branch, tag or commit of a model on the hub", default="its main branch")
    ] = None
    api: Annotated[ServerOptions, within()] = ServerOptions()
    engine: Annotated[EngineOptions, within()] = EngineOptions()


class ServeOptions(ProcessOptions, frozen=True, kw_only=True):
    """Of `echelon serve`. Processes that are started by hand read the variables."""

    gather_at: Annotated[
        str | None,
        about(
            HOSTS,
            "Let other hosts join here, each with `echelon join`, and hold stages: tcp://HOST:PORT, HOST being a name "
            "or address under which they reach this one. The next 3 + 2 N ports are used too, for N stages",
        ),
    ] = None
    local_stages: Annotated[NotNegative, about(HOSTS, "Of --stages so many on this host")] = 1
    token: Annotated[
        str | None,
        about(
            HOSTS,
            "Secret that a host needs to join; with it connections are authenticated and encrypted",
            default="drawn and shown, unless --gather-at is a loopback address",
        ),
    ] = None

    log_format: Annotated[Literal["text", "json"], about(LOG, "Lines for people, or a JSON object a line")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], about(LOG, "From which level on; info has a line a request")
    ] = "info"


class PlanOptions(ProcessOptions, frozen=True, kw_only=True):
    """Of `echelon plan`: of what is started, and where."""

    hosts: Annotated[
        tuple[str, ...],
        about(NETWORK, "Where rank 0 and then each stage run", default="engine,stage-0,stage-1, as many as stages"),
    ] = ()
    base_port: Annotated[Port, about(NETWORK, "First of the TCP ports that the processes listen on")] = 5550
    token: Annotated[
        str | None,
        about(
            NETWORK,
            "Secret of the group, with which its ZeroMQ connections over TCP are authenticated and encrypted",
            default="drawn, unless all hosts are loopback addresses",
        ),
    ] = None
    measure: Annotated[
        bool,
        about(NETWORK, "Balance stages by the time that layers take on this machine's devices, which hosts must have"),
    ] = False
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


class DoctorOptions(Struct, frozen=True, kw_only=True):
    """Of `echelon doctor`."""

    port: Annotated[Port, about("API", "Port that is to be free")] = 8000


SERVE = Program(
    "echelon serve",
    "Serve MODEL over an OpenAI-compatible API, its layers split over pipeline stages.",
    ServeOptions,
    ELSEWHERE,
)
PLAN = Program(
    "echelon plan",
    "Write the configuration of processes that are started one by one, in containers or on several machines.",
    PlanOptions,
    ELSEWHERE,
)
DOCTOR = Program("echelon doctor", "Say what this machine can do, and what is wrong with it.", DoctorOptions)
CHECK = Program(
    "echelon check-config", "Say what would start, where, and with how much memory; start nothing.", CheckOptions
)
