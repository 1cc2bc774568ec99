"""Frame policies: how drafts become frames, which is all that the schedule of one method differs in from another's."""

from dataclasses import dataclass

from workers.shared.config import EngineConfig


@dataclass(frozen=True)
class FramePolicy:
    """What the schedule cuts from verified tokens and drafts, and when.

    A frame goes as soon as it is full and a credit is free; one that is not full goes once nothing more is to be
    drafted into it. Drafts may wait for a credit where there is more than one; with a single one, they are made while
    no frame is in flight.
    """

    chunks: int  # most frames in flight, of all sequences; a prompt being computed may have all of them
    width: int  # most positions of a decode frame: of one token verified or drafted, and of the drafts behind it
    credits: int  # most decode frames in flight, of one sequence
    breadth: int = 1  # most drafts at one position

    @property
    def scratch(self) -> int:
        """Most drafts, in flight or waiting for it, that cannot have the row of their position."""
        return (self.breadth - 1) * self.width * (self.credits + 1)


def pipelined(stages: int, delta: int = 0, width: int = 1, breadth: int = 1) -> FramePolicy:
    """Speculative pipeline decoding: a frame in every stage, and `delta` more under way.

    A frame covers `width` positions, with up to `breadth` drafts at each.
    """
    return FramePolicy(chunks=stages + delta, width=width, credits=stages + delta, breadth=breadth)


def draft_then_verify(stages: int, drafts: int, breadth: int = 1) -> FramePolicy:
    """Classic speculative decoding: drafts for `drafts` positions, one frame with all, its sample; the next round."""
    return FramePolicy(chunks=stages, width=drafts + 1, credits=1, breadth=breadth)


def choose_policy(config: EngineConfig) -> FramePolicy:
    """The configured policy, of a configuration that has been checked."""
    drafts = config.drafter.num_speculative_tokens
    if drafts == 0:
        return pipelined(config.stages, config.delta, config.widest, config.tree_width)
    return draft_then_verify(config.stages, drafts, config.tree_width)
