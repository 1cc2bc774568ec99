"""Requests that wait for a slot: those of the lowest priority number first, then first come, first served. Pure."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class _Place(Generic[Item]):
    priority: int
    number: int  # in the order of arrival
    item: Item

    @property
    def order(self) -> tuple[int, int]:
        return self.priority, self.number


class WaitingLine(Generic[Item]):
    """Iterates over what waits in the order in which it will leave."""

    def __init__(self) -> None:
        self._places: list[_Place[Item]] = []
        self._arrived = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Item]:
        return (place.item for place in self._places)

    def join(self, item: Item, priority: int) -> None:
        """Lines up behind all of the same priority and of lower numbers."""
        self._arrived += 1
        insort(self._places, _Place(priority, self._arrived, item), key=lambda place: place.order)

    def remove(self, item: Item) -> None:
        """One leaves, whether it is its turn or not; raises `ValueError` where it does not wait."""
        for place in self._places:
            if place.item is item:
                self._places.remove(place)
                return
        raise ValueError("it does not wait")
