"""Hidden states over Unix sockets: the default between CPU stages of one host."""

import struct
import time
from collections.abc import Callable

import torch
from torch import Tensor

from workers.shared.errors import OutOfStep, PeerLost
from workers.shared.frames import Frame
from workers.shared.links import Link, Listener, connect

HEADER = struct.Struct("<QQQQQ")  # key, announcement number, sequence, epoch, position
_LOOK_SECONDS = 1.0


class UnixOutbound:
    """Sends each tensor behind a header that names its engine and its frame."""

    def __init__(self, endpoint: str, key: int, stage: int, timeout: float) -> None:
        """Connects with the first tensor, when every stage is ready. The receiver may be busy for `timeout` seconds."""
        self._endpoint = endpoint
        self._key = key
        self._receiver = f"stage {stage + 1}"
        self._timeout = timeout
        self._link: Link | None = None

    def send(self, frame: Frame, hidden: Tensor) -> None:
        """See `Outbound`. Waits where the receiver is more frames behind than the kernel has room for."""
        if self._link is None:
            self._link = connect(self._endpoint, self._receiver, self._timeout)
        header = HEADER.pack(self._key, frame.index, frame.sequence, frame.epoch, frame.position)
        self._link.send(header, hidden.contiguous().cpu().view(torch.uint8).numpy().reshape(-1).data)
        self._link.drain(self._timeout)

    def close(self) -> None:
        """See `Outbound`."""
        if self._link is not None:
            self._link.close()


class UnixInbound:
    """Takes tensors and checks that each belongs to the frame that was announced next."""

    def __init__(
        self,
        listener: Listener,
        key: int,
        *,
        stage: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        timeout: float,
        orphaned: Callable[[], bool],
    ) -> None:
        """`key` is the sender's. Waits `timeout` seconds, but not after `orphaned()`, which is asked once a second."""
        self._listener = listener
        self._stage = stage
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._device = device
        self._timeout = timeout
        self._orphaned = orphaned
        self._key = key
        self._link: Link | None = None

    def receive(self, frame: Frame) -> Tensor:
        """See `Inbound`."""
        link = self._link or self._accept()
        started = time.monotonic()
        while not link.wait(_LOOK_SECONDS):
            if self._orphaned():
                raise PeerLost("rank 0 has gone")
            if time.monotonic() - started > self._timeout:
                raise PeerLost(
                    f"stage {self._stage} waited {self._timeout:g} s for {frame} from stage {self._stage - 1}"
                )
        message = link.take()
        if len(message) < HEADER.size or HEADER.unpack_from(message)[0] != self._key:
            raise OutOfStep(f"stage {self._stage} got something else from stage {self._stage - 1} than tensors")
        _, index, sequence, epoch, position = HEADER.unpack_from(message)
        if index != frame.index:
            raise OutOfStep(
                f"stage {self._stage} expected {frame}, stage {self._stage - 1} sent frame {index} "
                f"(sequence {sequence}, epoch {epoch}, position {position})"
            )
        flat = torch.frombuffer(bytearray(message[HEADER.size :]), dtype=self._dtype)
        return flat.view(len(frame.tokens), self._hidden_size).to(self._device)

    def wait(self, seconds: float) -> bool:
        """Whether a tensor, or the sender's end, arrives within `seconds`."""
        return self._link is not None and self._link.wait(seconds)

    def close(self) -> None:
        """See `Inbound`."""
        self._listener.close()
        if self._link is not None:
            self._link.close()

    def _accept(self) -> Link:
        link = self._listener.accept(self._timeout)
        if link is None:
            raise PeerLost(f"stage {self._stage - 1} has not come to stage {self._stage} in {self._timeout:g} s")
        self._link = link
        return link
