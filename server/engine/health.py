"""Whether the engine is alive, decided from probes, answers and connection events; no sockets, no clock."""

_LATE = 2  # intervals between two looks that a busy event loop may take


class EngineHealth:
    """Invariant: healthy means that the engine has answered a probe of this connection, and that it did so, or sent a
    token, within the last `timeout` seconds.

    At most one probe is unanswered at a time, so an engine that comes back late finds no backlog of them; a probe
    that stays unanswered for `timeout` seconds is given up and replaced. Time in which this process did not run, as
    on a machine that was suspended, does not count: answers that came meanwhile could not be read.
    """

    def __init__(self, timeout: float, interval: float) -> None:
        """`interval`: seconds between two calls of `next_probe` in a process that runs."""
        self._timeout = timeout
        self._interval = interval
        self._looked_at: float | None = None
        self._number = 0
        self._probed_at: float | None = None
        self._alive_at: float | None = None

    def next_probe(self, now: float) -> int | None:
        """Number of the probe to send at `now` (seconds), or None while one is on its way."""
        self._excuse(now)
        if self._probed_at is not None and now - self._probed_at <= self._timeout:
            return None
        self._number += 1
        self._probed_at = now
        return self._number

    def answered(self, number: int, now: float) -> bool:
        """Records an answer; False if it belongs to no probe that is waited for."""
        if self._probed_at is None or number != self._number:
            return False
        self._probed_at = None
        self._alive_at = now
        return True

    def heard(self, now: float) -> None:
        """Records a token, which has been through every stage like a probe, and may have delayed its answer."""
        if self._alive_at is not None:
            self._alive_at = now

    def disconnected(self) -> None:
        """Forgets every answer: whoever connects next has to answer a probe of its own."""
        self._probed_at = None
        self._alive_at = None

    def healthy(self, now: float) -> bool:
        """Whether the last sign of life is recent enough."""
        return self._alive_at is not None and now - self._alive_at <= self._timeout

    def _excuse(self, now: float) -> None:
        lost = 0.0 if self._looked_at is None else now - self._looked_at - _LATE * self._interval
        self._looked_at = now
        if lost > 0:
            self._probed_at = None if self._probed_at is None else self._probed_at + lost
            self._alive_at = None if self._alive_at is None else self._alive_at + lost
