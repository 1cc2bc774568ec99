"""Stages on hosts that join: this one, with as many as it was told to hold, and others."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from server.hosts.lobby import Lobby
from server.hosts.model_files import SharedModel
from server.hosts.roster import Seating, relative_speeds
from server.launcher.resolve import ModelSize, is_address, is_loopback, local_endpoints, plan_over_network, rebalanced
from workers.shared.config import EngineConfig
from workers.shared.endpoints import split_tcp
from workers.shared.errors import ConfigError
from workers.shared.fingerprint import engine_fingerprint
from workers.shared.hosts.tokens import check_token, draw_token
from workers.shared.options.engine import DEFAULT_STAGES, EngineOptions
from workers.shared.processes.children import Child, Spawn, spawn
from workers.shared.processes.logs import tell

_GRACE = 5.0  # seconds for this host's own member to leave in


@dataclass(frozen=True)
class Gathering:
    """Where hosts join, and what this one holds."""

    address: str  # tcp://HOST:PORT
    token: str
    local_stages: int
    drawn: bool  # whether nobody knows the token yet

    @classmethod
    def settled(cls, address: str, token: str | None, local_stages: int) -> "Gathering":
        """Draws a token where one is needed and none given; raises `ConfigError`."""
        host, _ = split_tcp(address)
        if host in ("0.0.0.0", "::", "*"):
            raise ConfigError(f"--gather-at {address}: give the address or name under which other hosts reach this one")
        if token:
            check_token(token)
        drawn = not token and not is_loopback(host)
        return cls(address, draw_token() if drawn else token or "", local_stages, drawn)


class JoinedStages:
    """Stages that start where hosts have joined."""

    def __init__(self, gathering: Gathering, model: ModelSize, given: str, options: EngineOptions, run: Path) -> None:
        """`given` is the model as the operator named it, `run` the launcher's folder."""
        self._gathering = gathering
        self._model = model
        self._options = options
        self._run = run
        self._here = local_endpoints(run, 0, 0)
        self._stages = len(options.split) or options.stages or DEFAULT_STAGES
        host, self._port = split_tcp(gathering.address)
        self._host = f"[{host}]" if ":" in host else host
        listen = None if is_address(host) else "0.0.0.0"
        self._lobby = Lobby(gathering.address, listen, gathering.token, SharedModel.of(given, model.folder))
        self._own: Child | None = None
        secret = f" --token {gathering.token}" if gathering.drawn else ""  # one that was given stays out of logs
        tell(f"echelon: on every other host: echelon join {gathering.address}{secret}")

    def plan(self, attempt: int) -> EngineConfig:
        """See `StageHosts`: waits for hosts, and starts this one's own member where it does not run."""
        self._here = local_endpoints(self._run, 0, attempt)  # the API server runs here, and what drafts beside rank 0
        if self._gathering.local_stages and (self._own is None or self._own.process.poll() is not None):
            self._own = self._join_here()
        return self._lobby.assemble(self._stages, self._seated, engine_fingerprint)

    def start(self, config: EngineConfig, path: Path, spawn: Spawn) -> Sequence[Child]:
        """See `StageHosts`: none is this launcher's own."""
        self._lobby.start()
        return ()

    def close(self) -> None:
        """See `StageHosts`."""
        if self._own is not None:
            self._own.end(_GRACE)
        self._lobby.close()

    def _seated(self, seating: Seating) -> EngineConfig:
        hosts = [self._host, *(place.address for place in seating)]
        options = msgspec.structs.replace(
            self._options, stages=self._stages, device=tuple(place.seat.device for place in seating)
        )
        options = rebalanced(options, self._model, relative_speeds([place.seat for place in seating]))
        config = plan_over_network(options, self._model, hosts, self._port + 1, self._gathering.token)
        ends = msgspec.structs.replace(config.endpoints, bus=self._here.bus, cascade=self._here.cascade)
        return msgspec.structs.replace(config, endpoints=ends)

    def _join_here(self) -> Child:
        # The first stages are here: so a drafter on their device may be.
        arguments = [self._gathering.address, "--address", self._host.strip("[]"), "--stage", "0"]
        devices = self._options.device
        if devices == ("cpu",):
            arguments += ["--device", "cpu", "--seats", str(self._gathering.local_stages)]
        else:
            given = [f"cuda:{i}" for i in range(self._gathering.local_stages)] if devices == ("cuda",) else devices
            arguments += ["--device", ",".join(given[: self._gathering.local_stages])]
        secret = {"ECHELON_TOKEN": self._gathering.token}  # not where other users of this host see it
        return spawn("this host's member", "workers.hosts", *arguments, variables=secret)
