"""What one stage knows of the frames to come: order, epochs, and which of them are dead. No torch, no sockets.

A stage hears control messages as early as it can and decides as late as it can, so that dead frames are forwarded
without being computed.
"""

from collections import deque

from workers.shared.errors import OutOfStep
from workers.shared.frames import Frame
from workers.shared.messages import Open, Rollback, Sample


class Lookahead:
    """Announced frames of one stage, in order, and the oldest epoch that is alive in each sequence."""

    def __init__(self, name: str) -> None:
        self._name = name  # for error messages
        self._frames: deque[Frame] = deque()
        self._next_index: int | None = None  # the first frame heard may have any number
        self._alive: dict[int, int] = {}
        self._length: dict[int, int] = {}  # positions of the sequence that this stage has keys and values for
        self._expected: dict[int, tuple[int, int, int]] = {}  # last stage: epoch, position and token it sampled

    def hear(self, message: Frame | Open | Rollback) -> None:
        """Takes a control message in announcement order.

        An `Open` may be obeyed at once, though older frames are still queued: it kills them all.
        Raises `OutOfStep` where a frame was lost.
        """
        self._raise_epoch(message.sequence, message.epoch)
        if isinstance(message, Frame):
            if self._next_index is not None and message.index != self._next_index:
                raise OutOfStep(f"{self._name} heard {message} of rank 0, but number {self._next_index} was next")
            self._next_index = message.index + 1
            self._frames.append(message)
        elif isinstance(message, Open):
            self._length[message.sequence] = min(self._length.get(message.holder, 0), message.reused)
        else:
            self._length[message.sequence] = min(self._length.get(message.sequence, 0), message.kept)

    def pop(self) -> Frame | None:
        """The next frame to receive, if one is announced."""
        return self._frames.popleft() if self._frames else None

    def admit(self, frame: Frame) -> bool:
        """Whether to compute `frame` now; if so its positions count as held.

        This is all there is to rollback: a live frame at position p overwrites whatever was at p and after.
        Raises `OutOfStep` where positions before the frame are missing.
        """
        expected = self._expected.get(frame.sequence)
        if expected is not None and expected[:2] == (frame.epoch, frame.position) and expected[2] != frame.tokens[0]:
            # The last stage sees a rejection before rank 0 does. Rank 0 will come to the same verdict.
            self._raise_epoch(frame.sequence, frame.epoch + 1)
        if frame.epoch < self._alive[frame.sequence]:
            return False
        held = self._length.get(frame.sequence, 0)
        if frame.position > held:
            raise OutOfStep(f"{self._name} got {frame} of rank 0, but holds positions 0..{held - 1} only")
        self._length[frame.sequence] = frame.end
        return True

    def sampled(self, frame: Frame, sample: Sample) -> None:
        """Last stage: notes the token sampled after `frame`, against which its follower will be verified.

        Where a draft within the frame was wrong, whatever follows is dead.
        """
        if sample.end > frame.end:
            self._expected[frame.sequence] = (frame.epoch, frame.end, sample.tokens[-1])
        else:
            self._raise_epoch(frame.sequence, frame.epoch + 1)

    def _raise_epoch(self, sequence: int, epoch: int) -> None:
        self._alive[sequence] = max(self._alive.get(sequence, 0), epoch)
