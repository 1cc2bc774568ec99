"""What travels over a socket between two stages: a header that names engine and frame, and the tensor's bytes."""

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.shared.errors import OutOfStep, PeerLost
from workers.shared.frames import Frame

_HEADER = struct.Struct("<QQQQQ")  # key, announcement number, sequence, epoch, position
_LOOK_SECONDS = 1.0


def header(key: int, frame: Frame) -> bytes:
    """Goes before the tensor of `frame`. `key` is the same 64 bits at both ends of an edge, and nowhere else."""
    return _HEADER.pack(key, frame.index, frame.sequence, frame.epoch, frame.position)


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
        while not arrives(_LOOK_SECONDS):
            if self.orphaned():
                raise PeerLost("rank 0 has gone")
            if time.monotonic() - started > self.timeout:
                raise PeerLost(f"stage {self.stage} waited {self.timeout:g} s for {frame} from stage {self.stage - 1}")

    def recognises(self, message: bytes | bytearray | memoryview) -> bool:
        """Whether the message is of this engine."""
        return len(message) >= _HEADER.size and _HEADER.unpack_from(message)[0] == self.key

    def tensor(self, frame: Frame, message: bytearray) -> Tensor:
        """The hidden states `[T, H]` of `frame`, over the memory of `message`; raises `OutOfStep` for another frame."""
        _, index, sequence, epoch, position = _HEADER.unpack_from(message)
        if index != frame.index:
            raise OutOfStep(
                f"stage {self.stage} expected {frame}, stage {self.stage - 1} sent frame {index} "
                f"(sequence {sequence}, epoch {epoch}, position {position})"
            )
        flat = torch.frombuffer(message, dtype=self.dtype, offset=_HEADER.size)
        return flat.view(len(frame.tokens), self.hidden_size).to(self.device)
