"""A stage's end of its channels to rank 0: control messages in, results out."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec
import zmq

from workers.shared.bus import encode, open_socket
from workers.shared.config import Endpoints
from workers.shared.connection import ConnectionWatch
from workers.shared.endpoints import is_local
from workers.shared.errors import PeerLost
from workers.shared.links import Link, connect
from workers.shared.messages import FromStage, ToStage
from workers.stage.parts import Channel

_PEER = "rank 0"
_CONNECT_SECONDS = 60.0  # rank 0 listens before it loads anything
_BETWEEN_FRAMES = 0.02  # seconds that a stage attends to nothing but tensors: a ping waits as long at worst
_LAST_WORDS = 1.0  # seconds that the reason of an end may take to be delivered


class ControlChannel(Channel, Protocol):
    """Ordered messages of rank 0, and the way back. Rank 0 says nothing until all stages are ready.

    `heard` raises `PeerLost` where rank 0 has gone, or after too long a silence: rank 0 pings every second.
    """

    @property
    def orphaned(self) -> bool:
        """Whether the rank 0 that this stage belongs to has gone; another one may already listen at its address."""

    def close(self) -> None:
        """Ends the channels, once what was reported is delivered as far as rank 0 still takes it."""


def open_channel(context: "zmq.Context[Any]", endpoints: Endpoints, stage: int, silence: float) -> ControlChannel:
    """The channels of `stage`; they end after `silence` seconds without a word once rank 0 has spoken."""
    if is_local(endpoints.control[stage]):
        return LinkChannel(connect(endpoints.control[stage], _PEER, _CONNECT_SECONDS), silence)
    return ZmqChannel(
        open_socket(context, zmq.PULL, endpoints.control[stage], bind=False, token=endpoints.token),
        open_socket(context, zmq.PUSH, endpoints.results, bind=False, token=endpoints.token),
        silence,
    )


class LinkChannel:
    """Both channels over one connection between processes of one host.

    While frames flow, a stage is woken by the tensor it is to work on, not by the announcement that comes long before:
    one wake-up a frame instead of two.
    """

    def __init__(self, link: Link, silence: float) -> None:
        self._link = link
        self._silence = silence
        self._limit: float | None = None
        self._tensors: Callable[[float], bool] | None = None
        self._flowing = False
        self._decoder = msgspec.msgpack.Decoder(ToStage)

    def wake_for(self, tensors: Callable[[float], bool]) -> None:
        """`tensors(seconds)` waits for a hidden state to arrive."""
        self._tensors = tensors

    @property
    def orphaned(self) -> bool:
        """See `ControlChannel`."""
        return self._link.ended

    def heard(self, *, wait: bool) -> Iterator[ToStage]:
        """See `ControlChannel`."""
        if self._link.kept:
            self._link.flush()
        message = None
        if wait and self._flowing and self._tensors is not None:
            self._flowing = self._tensors(_BETWEEN_FRAMES)
            message = self._link.receive()
        if wait and message is None and not self._link.wait(self._limit):
            raise PeerLost(f"nothing heard of rank 0 for {self._silence:g} s")
        message = message or self._link.receive()
        while message is not None:
            self._limit, self._flowing = self._silence, True
            yield self._decoder.decode(message)
            message = self._link.receive()

    def report(self, message: FromStage) -> None:
        """See `ControlChannel`."""
        self._link.send(encode(message))

    def close(self) -> None:
        """See `ControlChannel`."""
        if not self._link.ended:
            self._link.drain(_LAST_WORDS)
        self._link.close()


class ZmqChannel:
    """The channels over ZeroMQ: between hosts, and between threads."""

    def __init__(self, control: "zmq.Socket[Any]", results: "zmq.Socket[Any]", silence: float) -> None:
        self._control = control
        self._results = results
        self._silence_ms = int(silence * 1000)
        self._limit_ms: int | None = None
        self._watch = ConnectionWatch(control)
        self._orphaned = False
        self._poller = zmq.Poller()
        self._poller.register(control, zmq.POLLIN)
        self._poller.register(self._watch.events, zmq.POLLIN)
        self._decoder = msgspec.msgpack.Decoder(ToStage)

    @property
    def orphaned(self) -> bool:
        """See `ControlChannel`."""
        self._orphaned = self._orphaned or self._watch.lost()
        return self._orphaned

    def heard(self, *, wait: bool) -> Iterator[ToStage]:
        """See `ControlChannel`."""
        if wait:
            self._wait()
        heard = False
        while True:
            try:
                message = self._control.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            heard = True
            yield self._decoder.decode(message)
        if heard:
            self._limit_ms = self._silence_ms
        elif wait and self.orphaned:
            raise PeerLost("rank 0 has gone")

    def _wait(self) -> None:
        while True:
            ready = dict(self._poller.poll(self._limit_ms))
            if not ready:
                raise PeerLost(f"nothing heard of rank 0 for {self._silence_ms / 1000:g} s")
            if self._control in ready or self.orphaned:
                return

    def report(self, message: FromStage) -> None:
        """See `ControlChannel`."""
        self._results.send(encode(message))

    def close(self) -> None:
        """See `ControlChannel`."""
        self._watch.close()
        self._control.close()
        self._results.close(linger=0 if self._orphaned else int(_LAST_WORDS * 1000))
