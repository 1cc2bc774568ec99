"""Ping rounds: liveness and figures that have been through the engine loop and every stage. No sockets, no clock."""

from workers.shared.errors import PeerLost
from workers.shared.messages import Pong, StageTimings


class PingRounds:
    """At most one round of pings is out at a time.

    A round that began after a probe arrived answers the probe. A stage that leaves a round open for longer than
    `deadline` seconds is taken for hung.
    """

    def __init__(self, stages: int, interval: float, deadline: float) -> None:
        self.timings = [StageTimings() for _ in range(stages)]
        self._interval = interval
        self._deadline = deadline
        self._number = 0
        self._started = float("-inf")
        self._missing: set[int] = set()
        self._waiting: list[tuple[bytes, int]] = []  # probes that the next round will answer
        self._answering: list[tuple[bytes, int]] = []  # probes that the current round will answer

    def probe(self, client: bytes, number: int) -> None:
        """A client asks for a status."""
        self._waiting.append((client, number))

    def due(self, now: float) -> int | None:
        """The number of the round to begin now, if one is to begin.

        Raises `PeerLost` naming the stages that have not answered within the deadline.
        """
        if self._missing:
            if now - self._started > self._deadline:
                stages = ", ".join(str(stage) for stage in sorted(self._missing))
                raise PeerLost(f"no answer from stage {stages} for {self._deadline:g} s")
            return None
        if not self._waiting and now - self._started < self._interval:
            return None
        self._number += 1
        self._started = now
        self._missing = set(range(len(self.timings)))
        self._answering, self._waiting = self._waiting, []
        return self._number

    def pong(self, pong: Pong) -> list[tuple[bytes, int]]:
        """A stage has answered; returns the probes to answer if it was the last one."""
        self.timings[pong.stage] = pong.timings
        if pong.number == self._number:
            self._missing.discard(pong.stage)
        if self._missing:
            return []
        answered, self._answering = self._answering, []
        return answered
