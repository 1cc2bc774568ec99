"""Hidden states as ZeroMQ messages: the default between CPU stages, and over any network."""

import struct
import time
from collections.abc import Callable
from typing import Any

import torch
import zmq
from torch import Tensor

from workers.shared.bus import Dropped
from workers.shared.errors import OutOfStep, PeerLost
from workers.shared.frames import Frame

_HEADER = struct.Struct("<QQQQQ")  # key, announcement number, sequence, epoch, position
_LOOK_MS = 1000


class ZmqOutbound:
    """Pushes each tensor behind a header that names its engine and its frame."""

    def __init__(self, socket: "zmq.Socket[Any]", key: int) -> None:
        """`key` is the same 64 bits at both ends of an edge, and nowhere else."""
        self._socket = socket
        self._key = key

    def send(self, frame: Frame, hidden: Tensor) -> None:
        """See `Outbound`."""
        header = _HEADER.pack(self._key, frame.index, frame.sequence, frame.epoch, frame.position)
        self._socket.send(header + hidden.cpu().view(torch.uint8).numpy().tobytes())

    def close(self) -> None:
        """See `Outbound`."""
        self._socket.close()


class ZmqInbound:
    """Pulls tensors and checks that each belongs to the frame that was announced next.

    Anybody may connect to the socket. What does not bear the engine's key is dropped and counted.
    """

    def __init__(
        self,
        socket: "zmq.Socket[Any]",
        key: int,
        *,
        stage: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        timeout: float,
        orphaned: Callable[[], bool],
    ) -> None:
        """Waits at most `timeout` seconds, and no longer than until `orphaned()`, which is asked once a second."""
        self._socket = socket
        self._stage = stage
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._device = device
        self._timeout = timeout
        self._orphaned = orphaned
        self._key = key
        self.dropped = Dropped(f"data channel of stage {stage}")
        self._socket.setsockopt(zmq.RCVTIMEO, _LOOK_MS)

    def receive(self, frame: Frame) -> Tensor:
        """See `Inbound`."""
        message = self._next(frame)
        _, index, sequence, epoch, position = _HEADER.unpack_from(message)
        if index != frame.index:
            raise OutOfStep(
                f"stage {self._stage} expected {frame}, stage {self._stage - 1} sent frame {index} "
                f"(sequence {sequence}, epoch {epoch}, position {position})"
            )
        flat = torch.frombuffer(message, dtype=self._dtype, offset=_HEADER.size)
        return flat.view(len(frame.tokens), self._hidden_size).to(self._device)

    def _next(self, frame: Frame) -> bytearray:
        """The next message of the stage before, which is to be that of `frame`."""
        started = time.monotonic()
        while True:
            try:
                message = bytearray(self._socket.recv())
            except zmq.Again:
                if self._orphaned():
                    raise PeerLost("rank 0 has gone") from None
                if time.monotonic() - started > self._timeout:
                    raise PeerLost(
                        f"stage {self._stage} waited {self._timeout:g} s for {frame} from stage {self._stage - 1}"
                    ) from None
                continue
            if len(message) >= _HEADER.size and _HEADER.unpack_from(message)[0] == self._key:
                return message
            self.dropped.add("it is not of this engine")

    def close(self) -> None:
        """See `Inbound`."""
        self._socket.close()
