"""Hidden states as ZeroMQ messages: over any network."""

from typing import Any

import torch
import zmq
from torch import Tensor

from workers.shared.bus import Dropped
from workers.shared.frames import Frame
from workers.transport.incoming import Incoming, header


class ZmqOutbound:
    """Pushes each tensor behind its header."""

    def __init__(self, socket: "zmq.Socket[Any]", key: int) -> None:
        self._socket = socket
        self._key = key

    def send(self, frame: Frame, hidden: Tensor) -> None:
        """See `Outbound`."""
        self._socket.send(header(self._key, frame) + hidden.cpu().view(torch.uint8).numpy().tobytes())

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
            if self._incoming.recognises(message):
                return self._incoming.tensor(frame, message)
            self.dropped.add("it is not of this engine")

    def close(self) -> None:
        """See `Inbound`."""
        self._socket.close()
