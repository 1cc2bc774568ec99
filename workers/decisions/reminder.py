"""When whoever waits is told what for: after a while, and then ever less often. Pure."""


class Reminder:
    """Each pause is twice as long as the one before."""

    def __init__(self, first: float, now: float, longest: float = float("inf")) -> None:
        """Due `first` seconds after `now`; no pause is longer than `longest` seconds."""
        self._pause = first
        self._next = now + first
        self._longest = longest

    def due(self, now: float) -> bool:
        """Whether it is time, which begins the next pause."""
        if now < self._next:
            return False
        self._pause = min(2 * self._pause, self._longest)
        self._next = now + self._pause
        return True
