"""How often processes that fail are started again; no clock."""

from collections import deque


class RestartBudget:
    """So many restarts within a window of time, and no more."""

    def __init__(self, restarts: int, window: float) -> None:
        """`restarts` within any `window` seconds."""
        self._window = window
        self._failures: deque[float] = deque(maxlen=restarts)

    def allow(self, now: float) -> bool:
        """Whether a failure at `now` (monotonic seconds) may be followed by a restart, which then counts."""
        full = len(self._failures) == self._failures.maxlen
        if full and now - self._failures[0] < self._window:
            return False
        self._failures.append(now)
        return True
