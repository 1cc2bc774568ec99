"""The interface of the data plane.

Frames are announced on the control channels before their tensors move, so both ends of an edge know order, shape and
dtype beforehand: there are no size messages and no handshakes.
"""

from typing import Protocol

from torch import Tensor

from workers.shared.frames import Frame


class Inbound(Protocol):
    """The receiving end of an edge."""

    def receive(self, frame: Frame) -> Tensor:
        """The hidden states `[len(frame.tokens), hidden]` of `frame`, on this stage's device.

        They are valid until the next call: a frame is done with, or copied, before the next one is received.
        Raises `PeerLost` where nothing comes in time and `OutOfStep` where another frame's tensor comes.
        """

    def close(self) -> None:
        """Lets a blocked `receive` fail."""


class Outbound(Protocol):
    """The sending end of an edge."""

    def send(self, frame: Frame, hidden: Tensor) -> None:
        """Hands the hidden states `[len(frame.tokens), hidden]` of `frame` on, without waiting for the receiver."""

    def close(self) -> None:
        """Gives resources back."""
