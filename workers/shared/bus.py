"""ZeroMQ sockets with typed MessagePack messages: the request bus, the control channels and the results channel.

Messages are encoded once and may be sent to many peers. A malformed message raises `msgspec.ValidationError`
with its path; nothing is ever unpickled.
"""

from typing import Any

import msgspec
import zmq

_UNLIMITED = 0


def encode(message: msgspec.Struct) -> bytes:
    """MessagePack bytes of a tagged message."""
    return msgspec.msgpack.encode(message)


def listening_address(endpoint: str, listen: str | None) -> str:
    """The address to bind for `endpoint`; `listen` replaces the host of a tcp endpoint (containers bind 0.0.0.0)."""
    if listen is None or not endpoint.startswith("tcp://"):
        return endpoint
    return f"tcp://{listen}:{endpoint.rsplit(':', 1)[1]}"


def open_socket(
    context: "zmq.Context[Any]",
    kind: int,
    endpoint: str,
    *,
    bind: bool,
    listen: str | None = None,
) -> "zmq.Socket[Any]":
    """A socket without high-water mark (credits bound what is in flight) that never lingers on close.

    Raises `zmq.ZMQError` where the address cannot be bound.
    """
    socket: zmq.Socket[Any] = context.socket(kind)
    socket.set_hwm(_UNLIMITED)
    socket.setsockopt(zmq.LINGER, 0)
    if bind:
        socket.bind(listening_address(endpoint, listen))
    else:
        socket.connect(endpoint)
    return socket
