"""When an idle device is given something to do, so that it does not clock down between two tokens."""

_WARM = 0.01  # seconds between two looks, and so between two pieces of work
_COLD = 0.1


class Warmth:
    """Looks at how many frames a stage has computed; works while none is, for some seconds after the last one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._frames: int | None = None
        self._newest: float | None = None  # when the count was first seen as it is, in seconds; None before any frame

    def look(self, now: float, frames: int) -> tuple[bool, float]:
        """Whether to work at `now`, and after how many seconds to look again."""
        if frames != self._frames:
            self._newest = None if self._frames is None else now
            self._frames = frames
            return False, _WARM
        warm = self._newest is not None and now - self._newest < self._seconds
        return warm, _WARM if warm else _COLD
