"""The live trace on its way to everybody who looks at it."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from workers.shared.errors import EchelonError
from workers.shared.live.messages import Trace

_VIEWERS = 16
_BATCHES = 128  # that wait for a viewer, some seconds' worth


class TooManyViewers(EchelonError):
    """As many look already as may."""


class Viewer:
    """One reader. What it does not read in time is lost, and counted."""

    def __init__(self) -> None:
        self._batches: deque[Trace] = deque()
        self._lost = 0
        self._ended = False
        self._news = asyncio.Event()

    def put(self, trace: Trace) -> None:
        """The next batch."""
        if len(self._batches) == _BATCHES:
            dropped = self._batches.popleft()
            self._lost += len(dropped.events) + dropped.lost
        self._batches.append(trace)
        self._news.set()

    def end(self) -> None:
        """There will be no more."""
        self._ended = True
        self._news.set()

    async def get(self) -> Trace | None:
        """The next batch; None at the end."""
        while not self._batches:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        trace, lost = self._batches.popleft(), self._lost
        self._lost = 0
        return Trace(trace.events, trace.lost + lost)


class TraceFeed:
    """Everybody who looks."""

    def __init__(self) -> None:
        self._viewers: list[Viewer] = []

    @property
    def watched(self) -> bool:
        """Whether anybody looks."""
        return bool(self._viewers)

    @contextmanager
    def viewer(self) -> Iterator[Viewer]:
        """One more, as long as this lasts; raises `TooManyViewers`."""
        if len(self._viewers) >= _VIEWERS:
            raise TooManyViewers(f"{_VIEWERS} dashboards are open already")
        viewer = Viewer()
        self._viewers.append(viewer)
        try:
            yield viewer
        finally:
            self._viewers.remove(viewer)

    def put(self, trace: Trace) -> None:
        """A batch for all of them."""
        for viewer in self._viewers:
            viewer.put(trace)

    def end(self) -> None:
        """The server is leaving."""
        for viewer in self._viewers:
            viewer.end()
