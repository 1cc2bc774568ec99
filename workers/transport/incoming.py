"""What travels over a socket between two stages: a header that names engine and frame, and the tensor's bytes.

Both ends keep their memory from one frame to the next: what is received is valid until the next frame is.
"""

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.shared.errors import OutOfStep, PeerLost
from workers.shared.frames import Frame

_HEADER = struct.Struct("<QQQQQ")  # key, announcement number, sequence, epoch, position
HEADER_BYTES = _HEADER.size
LOOK_SECONDS = 1.0  # between two looks at whether it is worth while to wait


class Outgoing:
    """Messages of an edge's sending end. `key` is the same 64 bits at both ends of an edge, and nowhere else."""

    def __init__(self, key: int) -> None:
        self._key = key
        self._message = bytearray()
        self._tensor: Tensor | None = None  # over the memory of the message, behind its header

    def message(self, frame: Frame, hidden: Tensor) -> bytearray:
        """The header of `frame` and its hidden states `[T, H]`, of any device; valid until the next call.

        Frames of one shape share their memory.
        """
        tensor = self._tensor
        if tensor is None or tensor.shape != hidden.shape:
            self._message = bytearray(HEADER_BYTES + hidden.nbytes)
            tensor = torch.frombuffer(self._message, dtype=hidden.dtype, offset=HEADER_BYTES).view(hidden.shape)
            self._tensor = tensor
        _HEADER.pack_into(self._message, 0, self._key, frame.index, frame.sequence, frame.epoch, frame.position)
        tensor.copy_(hidden)
        return self._message


@dataclass(frozen=True)
class Incoming:
    """What a stage expects of the one before it, and how long it waits for that."""

    key: int  # the sender's
    stage: int  # the receiver
    hidden_size: int
    dtype: torch.dtype
    device: torch.device
    timeout: float  # seconds
    orphaned: Callable[[], bool]  # asked once a second: nothing comes any more once rank 0 has gone

    def wait(self, frame: Frame, arrives: Callable[[float], bool]) -> None:
        """Returns once something `arrives(seconds)`; raises `PeerLost` where nothing comes for `frame`."""
        started = time.monotonic()
        while not arrives(LOOK_SECONDS):
            if self.orphaned():
                raise PeerLost("rank 0 has gone")
            if time.monotonic() - started > self.timeout:
                raise PeerLost(f"stage {self.stage} waited {self.timeout:g} s for {frame} from stage {self.stage - 1}")

    def belongs(self, frame: Frame, message: bytes | bytearray | memoryview) -> bool:
        """Whether the message is of this engine; raises `OutOfStep` where it is not of `frame`."""
        if len(message) < HEADER_BYTES:
            return False
        key, index, sequence, epoch, position = _HEADER.unpack_from(message)
        if key != self.key:
            return False
        if index != frame.index:
            raise OutOfStep(
                f"stage {self.stage} expected {frame}, stage {self.stage - 1} sent frame {index} "
                f"(sequence {sequence}, epoch {epoch}, position {position})"
            )
        size = HEADER_BYTES + len(frame.tokens) * self.hidden_size * self.dtype.itemsize
        if len(message) != size:
            raise OutOfStep(f"stage {self.stage} expected {size} bytes for {frame}, got {len(message)}")
        return True

    def tensor(self, rows: int, message: bytearray | memoryview) -> Tensor:
        """The hidden states `[rows, H]` of a message, over its memory where this stage is on the CPU."""
        flat = torch.frombuffer(message, dtype=self.dtype, offset=HEADER_BYTES, count=rows * self.hidden_size)
        return flat.view(rows, self.hidden_size).to(self.device)
