"""Waits for sockets of the system and of ZeroMQ at once, at the cost of one system call."""

import select
from typing import Any

import zmq

_READABLE = int(zmq.POLLIN)


class Wakeup:
    """What rank 0 sleeps on.

    The descriptor of a ZeroMQ socket tells of changes only, and any use of the socket may consume one: whether there is
    something to receive is asked before every sleep.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._sockets: dict[int, zmq.Socket[Any]] = {}  # by descriptor

    def attend(self, socket: "zmq.Socket[Any]") -> int:
        """Wakes up while `socket` has a message; returns its descriptor."""
        descriptor = int(socket.getsockopt(zmq.FD))
        self._sockets[descriptor] = socket
        self.watch(descriptor)
        return descriptor

    def watch(self, descriptor: int, events: int = select.POLLIN) -> None:
        """Wakes up for `events` of the descriptor, and where its peer has gone; the last word on it counts."""
        self._poll.register(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """The descriptor is about to be closed."""
        self._poll.unregister(descriptor)

    def wait(self, seconds: float) -> list[tuple[int, int]]:
        """Sleeps until something happens or `seconds` have passed; returns what has, by descriptor.

        A ZeroMQ socket that is among it may turn out to have no message.
        """
        waiting = [
            (descriptor, select.POLLIN)
            for descriptor, socket in self._sockets.items()
            if int(socket.getsockopt(zmq.EVENTS)) & _READABLE
        ]
        return waiting + self._poll.poll(0 if waiting else seconds * 1000)
