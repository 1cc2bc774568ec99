"""Rank 0's end of the channels to all stages: control messages out, results in."""

import select
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import zmq

from speculation.wakeup import Wakeup
from workers.shared.bus import FREE_AGAIN, open_socket
from workers.shared.config import Endpoints
from workers.shared.connection import ConnectionWatch
from workers.shared.endpoints import is_local
from workers.shared.errors import PeerLost
from workers.shared.links import Link, Listener

_LAST_WORDS = 1.0  # seconds that a closing control channel may take to deliver the shutdown
_SEND_MS = 5000  # a control message waits only while its stage is not connected


class StageLines(Protocol):
    """One ordered control channel a stage, and the results of all of them. What is in flight is bounded by credits."""

    def noticed(self, ready: Sequence[tuple[int, int]]) -> None:
        """Takes note of what has happened, by descriptor (`Wakeup.wait`)."""

    def receive(self) -> bytes | memoryview | None:
        """The next message of any stage, if one has arrived; valid until the next call."""

    def announce(self, message: bytes) -> None:
        """Sends a message to every stage; raises `PeerLost` where one is not connected."""

    def dismiss(self, message: bytes) -> None:
        """Sends a last message to every stage that is still there."""

    def departed(self) -> list[int]:
        """Stages that have closed their channels, or died, since the last call."""

    def close(self) -> None:
        """Closes everything, after the last messages have left."""


def open_lines(context: "zmq.Context[Any]", endpoints: Endpoints, silence: float | None, wakeup: Wakeup) -> StageLines:
    """Listens for all stages: over links where they run on this host, else over ZeroMQ.

    `wakeup` will wake up for everything that concerns the lines.

    Between hosts a connection is lost after `silence` seconds without a sign of life; None: when it is closed.
    """
    if all(map(is_local, endpoints.control)):
        return LinkLines(endpoints.control, wakeup)
    return ZmqLines(context, endpoints, silence, wakeup)


class LinkLines:
    """One connection a stage. A stage that leaves may come again, as it does before its group is ready."""

    def __init__(self, endpoints: Sequence[str], wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._listeners = [Listener(endpoint, f"stage {stage}") for stage, endpoint in enumerate(endpoints)]
        self._links: list[Link | None] = [None] * len(endpoints)
        self._stages: dict[int, int] = {}  # by descriptor of a link
        self._doors: dict[int, int] = {}  # stages by descriptor of a listener
        for stage, listener in enumerate(self._listeners):
            self._doors[listener.fileno()] = stage
            wakeup.watch(listener.fileno())
        self._departed: list[int] = []
        self._readable: list[int] = []

    def noticed(self, ready: Sequence[tuple[int, int]]) -> None:
        """See `StageLines`."""
        self._readable.clear()
        for descriptor, events in ready:
            if (stage := self._stages.get(descriptor)) is not None:
                link = self._links[stage]
                if events & select.POLLOUT and link is not None:
                    self._flush(stage, link)
                if events & ~select.POLLOUT:
                    self._readable.append(stage)
            elif (stage := self._doors.get(descriptor)) is not None:
                self._accept(stage)
        self._readable.sort()  # the last stage's, whose samples are waited for, is taken first

    def receive(self) -> memoryview | None:
        """See `StageLines`: at most one message a stage between two calls of `noticed`."""
        while self._readable:
            stage = self._readable.pop()
            link = self._links[stage]
            if link is None:
                continue
            try:
                if (message := link.receive()) is not None:
                    return message
            except PeerLost:
                self._lose(stage, link)
        return None

    def announce(self, message: bytes) -> None:
        """See `StageLines`."""
        for stage, link in enumerate(self._links):
            if link is None:
                raise PeerLost(f"stage {stage} is not connected to its control channel")
            link.send(message)
            if link.kept:
                self._wakeup.watch(link.fileno(), select.POLLIN | select.POLLOUT)

    def dismiss(self, message: bytes) -> None:
        """See `StageLines`."""
        for stage, link in enumerate(self._links):
            if link is not None:
                try:
                    link.send(message)
                    link.drain(_LAST_WORDS)
                except PeerLost:
                    self._lose(stage, link)

    def departed(self) -> list[int]:
        """See `StageLines`."""
        departed, self._departed = self._departed, []
        return departed

    def close(self) -> None:
        """See `StageLines`."""
        for end in (*self._links, *self._listeners):
            if end is not None:
                end.close()

    def _accept(self, stage: int) -> None:
        fresh = self._listeners[stage].accept()
        if fresh is None:
            return
        if (link := self._links[stage]) is not None:
            self._lose(stage, link)
        self._links[stage] = fresh
        self._stages[fresh.fileno()] = stage
        self._wakeup.watch(fresh.fileno())

    def _flush(self, stage: int, link: Link) -> None:
        try:
            link.flush()
        except PeerLost:
            self._lose(stage, link)
            return
        if not link.kept:
            self._wakeup.watch(link.fileno())

    def _lose(self, stage: int, link: Link) -> None:
        self._wakeup.forget(link.fileno())
        del self._stages[link.fileno()]
        link.close()
        self._links[stage] = None
        self._departed.append(stage)


class ZmqLines:
    """A PUSH socket a stage, and one PULL socket for the results of all."""

    def __init__(
        self, context: "zmq.Context[Any]", endpoints: Endpoints, silence: float | None, wakeup: Wakeup
    ) -> None:
        bound = partial(
            open_socket, context, bind=True, listen=endpoints.listen, token=endpoints.token, patience=FREE_AGAIN
        )
        self._results = bound(zmq.PULL, endpoints.results)
        self._control = [bound(zmq.PUSH, endpoint, silence=silence) for endpoint in endpoints.control]
        for socket in self._control:
            socket.setsockopt(zmq.SNDTIMEO, _SEND_MS)
        self._watches = [ConnectionWatch(socket) for socket in self._control]
        wakeup.attend(self._results)

    def noticed(self, ready: Sequence[tuple[int, int]]) -> None:
        """See `StageLines`."""

    def receive(self) -> bytes | None:
        """See `StageLines`."""
        try:
            return self._results.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def announce(self, message: bytes) -> None:
        """See `StageLines`."""
        for stage, socket in enumerate(self._control):
            try:
                socket.send(message)
            except zmq.Again:
                raise PeerLost(f"stage {stage} is not connected to its control channel") from None

    def dismiss(self, message: bytes) -> None:
        """See `StageLines`."""
        for socket in self._control:
            try:
                socket.send(message, zmq.NOBLOCK)
            except zmq.Again:
                continue  # that one has gone already

    def departed(self) -> list[int]:
        """See `StageLines`."""
        return [stage for stage, watch in enumerate(self._watches) if watch.lost()]

    def close(self) -> None:
        """See `StageLines`."""
        for watch in self._watches:
            watch.close()
        for socket in self._control:
            socket.close(linger=int(_LAST_WORDS * 1000))
        self._results.close()
