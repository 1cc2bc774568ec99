"""From options and environment to a member of an engine."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

import msgspec

from workers.hosts.agent import Agent
from workers.shared.endpoints import split_tcp
from workers.shared.errors import ConfigError
from workers.shared.fingerprint import package_version
from workers.shared.hosts.messages import Join, Seat
from workers.shared.hosts.options import DEFAULT_PORT, JOIN, JoinOptions
from workers.shared.hosts.place import ProcessPlace, read_place
from workers.shared.hosts.tokens import check_token
from workers.shared.lifecycle import die_with_parent, parent_variable
from workers.shared.options.sources import read
from workers.shared.processes.logs import configure, tell


class _Stopped(Exception):
    """SIGTERM or SIGINT."""


def main(arguments: Sequence[str]) -> int:
    """Joins until stopped; 2 for what the operator got wrong, or where rank 0 refuses this host."""
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        configure("join")
        options = read(JOIN, arguments, os.environ)
        return join(options, os.environ)
    except ConfigError as error:
        tell(f"echelon join: {error}", error=True)
        return 2
    except _Stopped:
        return 0


def join(options: JoinOptions, environment: Mapping[str, str]) -> int:
    """Runs the agent with what options and environment say; returns an exit code."""
    place = read_place(environment)
    address = rank_0_address(options, place)
    host, port = split_tcp(address)
    token = options.token or ""
    if token:
        check_token(token)
    local = (f"cuda:{place.local}",) if not options.device and place.local is not None and _has_gpus() else ()
    seats = [seat for seat in _seats(options.device or local, options.measure) for _ in range(options.seats)]
    stage = options.stage if options.stage is not None else place.rank
    own = options.address or own_address(host, port)
    offer = Join(f"{socket.gethostname()} ({own})", own, tuple(seats), package_version(), stage)
    return Agent(address, token, offer, options.local_model).run()


def rank_0_address(options: JoinOptions, place: ProcessPlace) -> str:
    """Where the lobby is; raises `ConfigError` where nothing says it."""
    if options.rank_0:
        return options.rank_0
    if place.master is None:
        raise ConfigError("RANK_0 is missing: give tcp://HOST:PORT, as `echelon serve --gather-at` shows it")
    return f"tcp://{place.master}:{DEFAULT_PORT}"


def own_address(host: str, port: int) -> str:
    """Address of the interface that leads to rank 0; nothing is sent. Raises `ConfigError`."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"no way to {host} ({error.strerror}); give this host's --address") from error


def _has_gpus() -> bool:
    return os.path.exists("/dev/nvidiactl")


def _seats(devices: Sequence[str], measure: bool) -> list[Seat]:
    command = [sys.executable, "-m", "workers.hosts.devices", *devices, *(["--measure"] if measure else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=parent_variable(), check=False)
    if done.returncode:
        raise ConfigError(f"--device {','.join(devices)}: cannot be used (see above)")
    return msgspec.json.decode(done.stdout, type=list[Seat])


def _stop(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise _Stopped
