"""When a process that has ended is started again. Pure; no clock."""

_FIRST, _LONGEST = 0.5, 30.0  # seconds
_STEADY = 60.0  # seconds after which a process counts as one that works


class Backoff:
    """Twice as late after each failure, but for one that had worked for a while."""

    def __init__(self) -> None:
        self._pause = _FIRST

    def after(self, lived: float) -> float:
        """Seconds to wait, now that the process has ended `lived` seconds after it was started."""
        pause = _FIRST if lived >= _STEADY else self._pause
        self._pause = min(2 * pause, _LONGEST)
        return pause
