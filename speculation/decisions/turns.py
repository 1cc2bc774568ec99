"""Who was served longest ago. Pure."""

from collections.abc import Iterable


class Turns:
    """Counts turns, by slot. Those that never had one come first, in the order of their numbers."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._count = 0

    def took(self, slot: int) -> None:
        """It was this one's turn."""
        self._count += 1
        self._last[slot] = self._count

    def last(self, slot: int) -> int:
        """The number of its last turn; 0 before the first."""
        return self._last.get(slot, 0)

    def order(self, slots: Iterable[int]) -> list[int]:
        """The same, the one served longest ago first."""
        return sorted(slots, key=lambda slot: (self.last(slot), slot))
