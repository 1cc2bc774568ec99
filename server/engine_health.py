"""Whether the engine is alive, decided from probes, answers and connection events; no sockets, no clock."""


class EngineHealth:
    """Invariant: healthy means that the engine answered a probe of this connection within `timeout` seconds.

    At most one probe is unanswered at a time, so an engine that comes back late finds no backlog of them; a probe
    that stays unanswered for `timeout` seconds is given up and replaced.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._number = 0
        self._probed_at: float | None = None
        self._answered_at: float | None = None

    def next_probe(self, now: float) -> int | None:
        """Number of the probe to send at `now` (seconds), or None while one is on its way."""
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
        self._answered_at = now
        return True

    def disconnected(self) -> None:
        """Forgets every answer: whoever connects next has to answer a probe of its own."""
        self._probed_at = None
        self._answered_at = None

    def healthy(self, now: float) -> bool:
        """Whether the last answer is recent enough."""
        return self._answered_at is not None and now - self._answered_at <= self._timeout
