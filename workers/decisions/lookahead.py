"""What one stage knows of the frames to come: order, epochs, and which of them are dead. No torch, no sockets.

A stage hears control messages as early as it can and decides as late as it can, so that dead frames are forwarded
without being computed.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from workers.shared.errors import OutOfStep
from workers.shared.frames import Frame, Move, TokenPlace
from workers.shared.messages import Open, Rollback, Sample


class _Newest(NamedTuple):
    """The newest token that was sampled after, and what was sampled."""

    epoch: int
    place: TokenPlace
    token: int


class Lookahead:
    """Announced frames of one stage, in order, and the oldest epoch that is alive in each sequence."""

    def __init__(self, name: str) -> None:
        self._name = name  # for error messages
        self._frames: deque[Frame] = deque()
        self._next_index: int | None = None  # the first frame heard may have any number
        self._alive: dict[int, int] = {}
        self._began: dict[int, int] = {}  # the epoch that the request in a slot began with
        self._length: dict[int, int] = {}  # positions of the sequence that this stage has keys and values for
        self._newest: dict[int, _Newest] = {}  # last stage
        self.first: int | None = None  # last stage: the row of the admitted frame that is sampled after first

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
            self._began[message.sequence] = message.epoch
            self._length[message.sequence] = min(self._length.get(message.holder, 0), message.reused)
        else:
            self._began[message.sequence] = message.epoch
            self._length[message.sequence] = min(self._length.get(message.sequence, 0), message.kept)

    def pop(self) -> Frame | None:
        """The next frame to receive, if one is announced."""
        return self._frames.popleft() if self._frames else None

    def moves(self, frame: Frame) -> Sequence[Move]:
        """What to move out of scratch before `admit` is asked, be the frame dead or alive: verified tokens moved.

        Nothing once its request has ended: the rows are another one's by now.
        """
        sequence = frame.sequence
        if not frame.committed or frame.epoch < self._began.get(sequence, 0):
            return ()
        newest = self._newest.get(sequence)
        if newest is not None and (newest.place.slot, newest.place.position) in frame.committed:
            self._newest[sequence] = newest._replace(place=TokenPlace(newest.place.position))
        return frame.committed

    def admit(self, frame: Frame) -> bool:
        """Whether to compute `frame` now; if so its positions count as held.

        This is all there is to rollback: a live frame at position p overwrites whatever was at p and after.
        Raises `OutOfStep` where positions before the frame are missing.
        """
        self.first = 0
        newest = self._newest.get(frame.sequence)
        if newest is not None and newest.epoch == frame.epoch:
            self.first = frame.follower(newest.place, newest.token)
            if self.first is None and frame.children(newest.place):
                # The last stage sees before rank 0 that all drafts were wrong. Rank 0 will come to the same verdict.
                self._raise_epoch(frame.sequence, frame.epoch + 1)
        if frame.epoch < self._alive[frame.sequence]:
            return False
        held = self._length.get(frame.sequence, 0)
        if frame.seen > held:
            raise OutOfStep(f"{self._name} got {frame} of rank 0, but holds positions 0..{held - 1} only")
        self._length[frame.sequence] = frame.end
        return True

    def sampled(self, frame: Frame, sample: Sample) -> None:
        """Last stage: notes what was sampled after the frame that was admitted last; whatever follows it is verified.

        Where all drafts within the frame were wrong, what follows is dead.
        """
        first = self.first or 0
        row = first + sample.position - 1 - frame.place(first).position  # of a prompt, the last
        *walked, token = sample.tokens
        for step in walked:
            follower = frame.follower(frame.place(row), step)
            if follower is None:
                raise OutOfStep(f"{self._name} sampled {sample.tokens} along {frame}, which does not hold them")
            row = follower
        place = frame.place(row)
        if frame.children(place):
            self._raise_epoch(frame.sequence, frame.epoch + 1)
        else:
            self._newest[frame.sequence] = _Newest(frame.epoch, place, token)

    def _raise_epoch(self, sequence: int, epoch: int) -> None:
        self._alive[sequence] = max(self._alive.get(sequence, 0), epoch)
