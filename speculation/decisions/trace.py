"""A live trace, bounded: who looks, what is kept for them, when it is sent. No torch, no sockets, no clock.

Nothing is kept while nobody looks. Who looks says so again and again; who has not for `LEASE` seconds has gone. So a
reader that dies leaves nothing behind.
"""

from collections import deque
from typing import Generic, TypeVar

E = TypeVar("E")

LEASE = 3.0  # seconds for which events are sent after a `Watch`
INTERVAL = 0.03  # seconds between two batches: what an eye takes for movement
CAPACITY = 4096  # events between two batches; 2000 frames a second through 30 stages are 2000


class TraceBuffer(Generic[E]):
    """Events on their way to whoever looks. Seconds are by the caller's clock."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._events: deque[E] = deque(maxlen=capacity)
        self._watchers: dict[bytes, float] = {}  # until when
        self._lost = 0
        self._sent = float("-inf")

    @property
    def on(self) -> bool:
        """Whether events are wanted."""
        return bool(self._watchers)

    def watch(self, client: bytes, now: float) -> None:
        """`client` looks."""
        self._watchers[client] = now + LEASE

    def add(self, event: E) -> None:
        """Keeps an event, for which the oldest one makes room; only while `on`."""
        self._lost += len(self._events) == self._events.maxlen
        self._events.append(event)

    def expire(self, now: float) -> None:
        """Forgets who has gone, and with the last of them what was kept."""
        self._watchers = {client: until for client, until in self._watchers.items() if now < until}
        if not self._watchers:
            self._events.clear()
            self._lost = 0

    def take(self, now: float) -> tuple[list[E], int] | None:
        """What is to be sent to all `watchers` now, and how many events before it were lost; None: nothing yet."""
        if not self._events or now < self._sent + INTERVAL:
            return None
        self._sent = now
        events, lost = list(self._events), self._lost
        self._events.clear()
        self._lost = 0
        return events, lost

    @property
    def watchers(self) -> list[bytes]:
        """Who looks."""
        return list(self._watchers)


class ClockOffset:
    """Another process's clock in terms of this one's: off by what the fastest message of it took, at most."""

    def __init__(self) -> None:
        self._least: int | None = None

    def here(self, there: int, arrived: int) -> int:
        """When here it was `there` by the other clock, in a message that has `arrived`."""
        difference = arrived - there
        self._least = difference if self._least is None else min(self._least, difference)
        return there + self._least
