"""Hidden states as ZeroMQ messages: over any network."""

from typing import Any

import zmq
from torch import Tensor

from workers.shared.bus import Dropped
from workers.shared.frames import Frame
from workers.transport.incoming import Incoming, Outgoing


class ZmqOutbound:
    """Pushes each tensor behind its header."""

    def __init__(self, socket: "zmq.Socket[Any]", key: int) -> None:
        self._socket = socket
        self._outgoing = Outgoing(key)

    def send(self, frame: Frame, hidden: Tensor) -> None:
        """See `Outbound`."""
        self._socket.send(self._outgoing.message(frame, hidden))

    def close(self) -> None:
        """See `Outbound`."""
        self._socket.close()


class ZmqInbound:
    """Pulls tensors and checks that each belongs to the frame that was announced next.

    Anybody may connect to the socket. What does not bear the engine's key is dropped and counted.
    """

    def __init__(self, socket: "zmq.Socket[Any]", incoming: Incoming) -> None:
        self._socket = socket
        self._incoming = incoming
        self.dropped = Dropped(f"data channel of stage {incoming.stage}")

    def receive(self, frame: Frame) -> Tensor:
        """See `Inbound`."""
        while True:
            self._incoming.wait(frame, lambda seconds: bool(self._socket.poll(int(seconds * 1000))))
            message = bytearray(self._socket.recv())
            if self._incoming.belongs(frame, message):
                return self._incoming.tensor(len(frame.tokens), message)
            self.dropped.add("it is not of this engine")

    def close(self) -> None:
        """See `Inbound`."""
        self._socket.close()
