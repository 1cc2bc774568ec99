"""ZeroMQ sockets with typed MessagePack messages: the request bus, the control channels and the results channel.

Messages are encoded once and may be sent to many peers; nothing is ever unpickled. Anybody may connect to a socket that
listens, so what arrives goes through an `Intake`, and no peer can make this process allocate without a limit.
"""

import logging
import time
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from workers.shared.endpoints import TCP
from workers.shared.hosts.group_key import protect

log = logging.getLogger("echelon.bus")

_UNLIMITED = 0
_LARGEST = 2**30  # bytes of one message; hidden states of a wide chunk of a large model are some 100 MiB
_HEARTBEAT_MS = 1000
_BIND_AGAIN = 0.1  # seconds
FREE_AGAIN = 15.0  # seconds; what has an address may be an engine that is leaving, or a passing connection

Message = TypeVar("Message")


_ENCODER = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """MessagePack bytes of a tagged message."""
    return _ENCODER.encode(message)


class Dropped:
    """Messages that were of no use. The log has the 1st, 2nd, 4th, 8th... of them, so that no peer can fill it."""

    def __init__(self, place: str) -> None:
        """`place` names the socket in the log."""
        self.count = 0
        self.reason = ""  # why the last one was dropped
        self._place = place

    def add(self, reason: str) -> None:
        """One more."""
        self.count += 1
        self.reason = reason
        if self.count & (self.count - 1) == 0:
            log.warning("%s: dropped a message that cannot be read (%s); %d so far", self._place, reason, self.count)


class Intake(Generic[Message]):
    """Where bytes from outside become messages: what cannot be read is dropped and counted, and harms nobody."""

    def __init__(self, kind: Any, place: str) -> None:
        """`kind` is the type of the messages, `place` names the socket in the log."""
        self.dropped = Dropped(place)
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)

    def read(self, data: bytes | memoryview) -> Message | None:
        """The message, or None for what is none."""
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            self.dropped.add(str(error) or type(error).__name__)
            return None


def listening_address(endpoint: str, listen: str | None) -> str:
    """The address to bind for `endpoint`; `listen` replaces the host of a tcp endpoint (containers bind 0.0.0.0)."""
    if listen is None or not endpoint.startswith(TCP):
        return endpoint
    return f"tcp://{listen}:{endpoint.rsplit(':', 1)[1]}"


def open_socket(
    context: "zmq.Context[Any]",
    kind: int,
    endpoint: str,
    *,
    bind: bool,
    listen: str | None = None,
    token: str = "",
    silence: float | None = None,
    patience: float = 0.0,
) -> "zmq.Socket[Any]":
    """A socket without high-water mark (credits bound what is in flight) that never lingers on close.

    With a `token`, a tcp socket speaks to its holders only, encrypted (`workers.shared.hosts.group_key`).

    With `silence`, a connection whose other end has not moved for so many seconds is closed, at both ends: a process
    that was stopped, a host that has gone without a word. The sockets' own threads see to that, whatever their
    processes are busy with. Raises `zmq.ZMQError` where the address cannot be bound, also not in `patience` seconds.
    """
    socket: zmq.Socket[Any] = context.socket(kind)
    socket.set_hwm(_UNLIMITED)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST)
    if "[" in listening_address(endpoint, listen if bind else None):
        socket.setsockopt(zmq.IPV6, 1)
    if token and endpoint.startswith(TCP):
        protect(socket, token, listens=bind)
    if silence is not None:
        milliseconds = int(silence * 1000)
        socket.setsockopt(zmq.HEARTBEAT_IVL, min(_HEARTBEAT_MS, max(1, milliseconds // 4)))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, milliseconds)
        socket.setsockopt(zmq.HEARTBEAT_TTL, milliseconds)
    try:
        if bind:
            _bind(socket, listening_address(endpoint, listen), time.monotonic() + patience)
        else:
            socket.connect(endpoint)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


def _bind(socket: "zmq.Socket[Any]", address: str, deadline: float) -> None:
    while True:
        try:
            socket.bind(address)
            return
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() > deadline:
                raise
        time.sleep(_BIND_AGAIN)
