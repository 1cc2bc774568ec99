"""Takes messages off a ZeroMQ socket from the event loop, without a future for each."""

import asyncio
from collections.abc import Callable
from typing import Any

import zmq

_READABLE = int(zmq.POLLIN)
_DONTWAIT = int(zmq.DONTWAIT)


class BusReader:
    """Calls `take` with every message of `socket` until closed.

    The descriptor of a ZeroMQ socket tells of changes only, and any use of the socket may consume one. So everything
    there is is read each time, and `look` must be called after each send.
    """

    def __init__(self, socket: "zmq.Socket[Any]", take: Callable[[bytes], None]) -> None:
        self._socket = socket
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._open = True
        self._loop.add_reader(self._descriptor, self._drain)
        self.look()

    def look(self) -> None:
        """Reads soon what may have arrived meanwhile."""
        self._loop.call_soon(self._drain)

    def close(self) -> None:
        """No message is taken any more. To be called before the socket is closed."""
        self._open = False
        self._loop.remove_reader(self._descriptor)

    def _drain(self) -> None:
        while self._open and int(self._socket.getsockopt(zmq.EVENTS)) & _READABLE:
            self._take(self._socket.recv(_DONTWAIT))
