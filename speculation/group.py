"""The stages as a group: whether all are ready, whether one has left, and whether all of them still turn."""

import time
from collections.abc import Callable

from speculation.channels import Channels
from speculation.decisions.health import Overdue, PingRounds
from speculation.decisions.roll_call import RollCall
from workers.decisions.patience import frame_limit
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError, PeerLost
from workers.shared.fingerprint import Fingerprint, disagreement
from workers.shared.messages import Failure, Ping, Pong, Ready, StageTimings
from workers.shared.processes.logs import tell
from workers.shared.progress import Loading

_INTERVAL = 1.0  # seconds between two pings, and two looks at who has left, which would cost too much in every turn
_PINGS = 4  # at least, before a stage is taken for hung
_LAST_WORDS = 0.5  # seconds that the reason of a stage that has left may take to arrive


class StageGroup:
    """Raises `PeerLost`, or `ConfigError` where a restart would not mend it, as soon as the group cannot go on."""

    def __init__(self, config: EngineConfig, channels: Channels) -> None:
        self._addresses = config.endpoints.control
        self._ready_timeout = config.ready_timeout
        self._channels = channels
        self.interval = min(_INTERVAL, config.stall_timeout / _PINGS)  # seconds between two calls of `check`, at most
        self._pings = PingRounds(config.stages, self.interval)
        self._overdue = Overdue(self.interval)
        self._limits = config.stall_timeout, config.prefill_chunk
        self._next_look = 0.0  # monotonic seconds

    @property
    def timings(self) -> list[StageTimings]:
        """The newest counters of every stage."""
        return self._pings.timings

    def await_ready(self, fingerprint: Fingerprint, stopping: Callable[[], bool]) -> None:
        """Returns once every stage is ready, or when `stopping`. Until then stages may come and go.

        Raises `ConfigError` where a stage was started with other files, settings or another program than this rank 0,
        whose `fingerprint` it is, `PeerLost` where some are missing after `--ready-timeout` and do not go on loading.
        """
        roll = RollCall(self._addresses, self._ready_timeout, time.monotonic())
        missing = roll.missing
        while missing and not stopping():
            self._channels.wait(1.0)
            if (reminder := roll.look(time.monotonic())) is not None:
                tell(f"rank 0: {reminder}")
            # One that has left is a straggler of an earlier rank 0, or will be started again by whoever supervises it.
            missing.update(self._channels.departed())
            while (message := self._channels.result()) is not None:
                if isinstance(message, Ready):
                    _check_belongs(message, fingerprint)
                    missing.discard(message.stage)
                    tell(
                        f"stage {message.stage}: {message.layers} layers, "
                        f"{message.weight_bytes / 2**20:.0f} MiB weights, {message.kv_bytes / 2**20:.0f} MiB KV, "
                        f"ready in {message.seconds:.1f} s"
                    )
                elif isinstance(message, Loading):
                    roll.heard(message.stage, message.done, message.total, time.monotonic())
                elif isinstance(message, Failure):
                    self.fail(message)

    def check(self, now: float, awaited: Callable[[], int | None]) -> bool:
        """Looks after the stages, `now` being monotonic seconds: pings them and, now and then, sees who has left.

        `awaited` tells what it wants to know. Returns whether it was such a moment.
        """
        look = now >= self._next_look
        if not look and not self._pings.urgent:
            return False
        limit = frame_limit(*self._limits, self.timings)
        if look:
            self._next_look = now + self.interval
            self._check_departed()
            self._overdue.look(now, awaited(), limit)
        if (number := self._pings.due(now, limit)) is not None:
            self._channels.announce([Ping(number)])
        return look

    def probe(self, client: bytes, number: int) -> None:
        """A client asks for a status that has been through every stage."""
        self._pings.probe(client, number)

    def pong(self, pong: Pong) -> list[tuple[bytes, int]]:
        """A stage has answered; returns the probes to answer if it was the last one."""
        return self._pings.pong(pong)

    def _check_departed(self) -> None:
        if not (departed := self._channels.departed()):
            return
        self._channels.wait(_LAST_WORDS)
        while (message := self._channels.result()) is not None:
            if isinstance(message, Failure):
                self.fail(message)
        raise PeerLost(f"stage {', '.join(map(str, departed))} has gone")

    @staticmethod
    def fail(failure: Failure) -> None:
        """Raises the failure that a stage reports."""
        error = f"stage {failure.stage} failed: {failure.error}"
        raise ConfigError(error) if failure.permanent else PeerLost(error)


def _check_belongs(ready: Ready, mine: Fingerprint) -> None:
    stage = f"stage {ready.stage}"
    if (difference := disagreement("rank 0", mine, stage, ready.fingerprint)) is not None:
        raise ConfigError(f"{stage} does not belong to this engine: {difference}")
