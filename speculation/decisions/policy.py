"""Frame policies: how drafts become frames, which is all that the schedule of one method differs in from another's."""

from dataclasses import dataclass
from functools import cached_property

from workers.shared.config import EngineConfig
from workers.shared.frames import Shape, scratch_of


@dataclass(frozen=True)
class FramePolicy:
    """What the schedule cuts from verified tokens and drafts, and when.

    A frame goes as soon as it is full and a credit is free; one that is not full goes once nothing more is to be
    drafted into it. Drafts may wait for a credit where there is more than one; with a single one, they are made while
    no frame is in flight.
    """

    chunks: int  # most frames in flight, of all sequences; a prompt being computed may have all of them
    credits: int  # most decode frames in flight, of one sequence
    shapes: tuple[Shape, ...] = (Shape(),)  # of decode frames; which of them may change at any moment

    @cached_property
    def width(self) -> int:
        """Most positions of a decode frame."""
        return max(shape.width for shape in self.shapes)

    @cached_property  # the schedule asks for every sample
    def breadth(self) -> int:
        """Most drafts at one position."""
        return max(shape.breadth for shape in self.shapes)

    @property
    def scratch(self) -> int:
        """Drafts, in flight or waiting for it, that there is room for beside the rows of their positions."""
        return scratch_of(self.shapes, self.credits)


def pipelined(stages: int, delta: int = 0, width: int = 1, breadth: int = 1) -> FramePolicy:
    """Speculative pipeline decoding: a frame in every stage, and `delta` more under way.

    A frame covers `width` positions, with up to `breadth` drafts at each.
    """
    return FramePolicy(chunks=stages + delta, credits=stages + delta, shapes=(Shape(width, breadth),))


def draft_then_verify(stages: int, drafts: int, breadth: int = 1) -> FramePolicy:
    """Classic speculative decoding: drafts for `drafts` positions, one frame with all, its sample; the next round."""
    return FramePolicy(chunks=stages, credits=1, shapes=(Shape(drafts + 1, breadth),))


def choose_policy(config: EngineConfig) -> FramePolicy:
    """The configured policy, of a configuration that has been checked."""
    chunks = config.stages + config.delta
    return FramePolicy(chunks=chunks, credits=config.frames_in_flight, shapes=config.shapes)
