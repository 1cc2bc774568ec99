"""Rank 0's end of the channels to all stages: control messages out, results in."""

from collections.abc import Sequence
from typing import Any, Protocol

import zmq

from workers.shared.bus import open_socket
from workers.shared.config import Endpoints
from workers.shared.connection import ConnectionWatch
from workers.shared.endpoints import is_local
from workers.shared.errors import PeerLost
from workers.shared.links import Link, Listener

_LAST_WORDS = 1.0  # seconds that a closing control channel may take to deliver the shutdown
_SEND_MS = 5000  # a control message waits only while its stage is not connected

Ready = dict[Any, int]  # what a `zmq.Poller` found


class StageLines(Protocol):
    """One ordered control channel a stage, and the results of all of them. What is in flight is bounded by credits."""

    def register(self, poller: zmq.Poller) -> None:
        """Makes `poller` wake up for everything that concerns the lines."""

    def noticed(self, ready: Ready) -> None:
        """Takes note of what the poller found."""

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


def open_lines(context: "zmq.Context[Any]", endpoints: Endpoints, silence: float | None) -> StageLines:
    """Listens for all stages: over links where they run on this host, else over ZeroMQ.

    Between hosts a connection is lost after `silence` seconds without a sign of life; None: when it is closed.
    """
    if all(map(is_local, endpoints.control)):
        return LinkLines(endpoints.control)
    return ZmqLines(context, endpoints, silence)


class LinkLines:
    """One connection a stage. A stage that leaves may come again, as it does before its group is ready."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._listeners = [Listener(endpoint, f"stage {stage}") for stage, endpoint in enumerate(endpoints)]
        self._links: list[Link | None] = [None] * len(endpoints)
        self._departed: list[int] = []
        self._poller: zmq.Poller | None = None
        self._readable: list[int] = []

    def register(self, poller: zmq.Poller) -> None:
        """See `StageLines`."""
        self._poller = poller
        for listener in self._listeners:
            poller.register(listener.fileno(), zmq.POLLIN)

    def noticed(self, ready: Ready) -> None:
        """See `StageLines`."""
        self._readable.clear()
        for stage, (link, listener) in enumerate(zip(self._links, self._listeners, strict=True)):
            if link is not None and (events := ready.get(link.fileno())):
                if events & zmq.POLLOUT:
                    self._flush(stage, link)
                if events & ~zmq.POLLOUT:
                    self._readable.append(stage)  # the last stage's, whose samples are waited for, is taken first
            if ready.get(listener.fileno()):
                self._accept(stage)

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
                self._watch(link, zmq.POLLIN | zmq.POLLOUT)

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
        self._watch(fresh, zmq.POLLIN)

    def _flush(self, stage: int, link: Link) -> None:
        try:
            link.flush()
        except PeerLost:
            self._lose(stage, link)
            return
        if not link.kept:
            self._watch(link, zmq.POLLIN)

    def _lose(self, stage: int, link: Link) -> None:
        if self._poller is not None:
            self._poller.unregister(link.fileno())
        link.close()
        self._links[stage] = None
        self._departed.append(stage)

    def _watch(self, link: Link, events: int) -> None:
        if self._poller is not None:
            self._poller.register(link.fileno(), events)


class ZmqLines:
    """A PUSH socket a stage, and one PULL socket for the results of all."""

    def __init__(self, context: "zmq.Context[Any]", endpoints: Endpoints, silence: float | None) -> None:
        listen, token = endpoints.listen, endpoints.token
        self._results = open_socket(context, zmq.PULL, endpoints.results, bind=True, listen=listen, token=token)
        self._control = [
            open_socket(context, zmq.PUSH, endpoint, bind=True, listen=listen, token=token, silence=silence)
            for endpoint in endpoints.control
        ]
        for socket in self._control:
            socket.setsockopt(zmq.SNDTIMEO, _SEND_MS)
        self._watches = [ConnectionWatch(socket) for socket in self._control]

    def register(self, poller: zmq.Poller) -> None:
        """See `StageLines`."""
        poller.register(self._results, zmq.POLLIN)

    def noticed(self, ready: Ready) -> None:
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
