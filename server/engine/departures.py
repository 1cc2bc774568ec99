"""How often a place in the queue becomes free, and so when to try again. No sockets, no clock."""

from math import ceil

_MEMORY = 0.8  # weight of the past in the time between two
_LONGEST = 60  # seconds that anybody is told to wait


class Departures:
    """The time between two sequences that end, as of late."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._between: float | None = None

    def left(self, now: float) -> None:
        """A sequence has ended at `now` seconds."""
        if self._last is not None:
            gap = now - self._last
            self._between = gap if self._between is None else _MEMORY * self._between + (1 - _MEMORY) * gap
        self._last = now

    def retry_after(self, places: int) -> int:
        """Whole seconds, at least one, after which so many `places` should have become free."""
        return min(_LONGEST, max(1, ceil((self._between or 0.0) * places)))
