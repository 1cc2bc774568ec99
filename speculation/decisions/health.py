"""Whether the stages are alive and get on, decided from pings, frames and their times. No sockets, no clock.

Two things may be wrong with a group whose processes all run: a loop hangs, and its pings stay unanswered; or loops
turn, but what was sent is lost, and the oldest frame never leaves. How long is too long: `workers.decisions.patience`.
"""

from workers.shared.errors import PeerLost
from workers.shared.messages import Pong, StageTimings

_LATE = 2  # intervals between two looks that a busy loop may take


class PingRounds:
    """At most one round of pings is out at a time.

    A round that began after a probe arrived answers the probe. A stage that leaves a round open for longer than its
    limit is taken for hung. An open round is repeated, so that no stage hears nothing because another one is busy.
    """

    def __init__(self, stages: int, interval: float) -> None:
        self.timings = [StageTimings() for _ in range(stages)]
        self._interval = interval
        self._number = 0
        self._started = float("-inf")
        self._sent = float("-inf")
        self._missing: set[int] = set()
        self._waiting: list[tuple[bytes, int]] = []  # probes that the next round will answer
        self._answering: list[tuple[bytes, int]] = []  # probes that the current round will answer

    def probe(self, client: bytes, number: int) -> None:
        """A client asks for a status."""
        self._waiting.append((client, number))

    @property
    def urgent(self) -> bool:
        """Whether a ping is to be sent without waiting for the interval to pass."""
        return bool(self._waiting) and not self._missing

    def due(self, now: float, limit: float) -> int | None:
        """The number of the ping to send now, if one is to be sent.

        Raises `PeerLost` naming the stages that have not answered for more than `limit` seconds.
        """
        if self._missing:
            if now - self._started > limit:
                stages = ", ".join(str(stage) for stage in sorted(self._missing))
                raise PeerLost(f"no answer from stage {stages} for {limit:g} s")
            if now - self._sent < self._interval:
                return None
            self._sent = now
            return self._number
        if not self._waiting and now - self._started < self._interval:
            return None
        self._number += 1
        self._started = self._sent = now
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


class Overdue:
    """Notices that what is waited for does not come. Time in which this process does not run does not count."""

    def __init__(self, interval: float) -> None:
        """`interval`: seconds between two looks of a process that runs."""
        self._interval = interval
        self._looked_at = 0.0
        self._awaited: int | None = None
        self._waited = 0.0

    def look(self, now: float, awaited: int | None, limit: float) -> None:
        """`awaited`: the oldest frame in flight, by number; negative where requests run without any; None if none runs.

        Raises `PeerLost` where it has been the same for more than `limit` seconds.
        """
        passed = min(now - self._looked_at, _LATE * self._interval)
        self._looked_at = now
        if awaited is None or awaited != self._awaited:
            self._awaited, self._waited = awaited, 0.0
            return
        self._waited += passed
        if self._waited > limit:
            what = "no frame is in flight" if awaited < 0 else f"nothing heard of frame {awaited}"
            raise PeerLost(f"a request runs, but {what} for {limit:g} s")
