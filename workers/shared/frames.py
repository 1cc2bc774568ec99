"""Frames: the only thing that moves through the pipeline (docs/design.md, "Frames and epochs")."""

from typing import Annotated

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0)]


class Frame(msgspec.Struct, frozen=True, array_like=True, tag="frame"):
    """Consecutive tokens of one sequence on their way through every stage.

    One drafted token is a frame of one token, a prompt chunk is a frame of many. Every announced frame crosses every
    edge exactly once, in announcement order, whether it is still alive or not.
    """

    index: Natural  # announcement number, counted over the life of the engine
    sequence: Natural  # KV slot
    epoch: Natural  # frames of an older epoch than the newest one heard of are dead
    position: Natural  # of the first token
    tokens: tuple[int, ...]
    wants_sample: bool  # whether the last stage samples the token after this frame

    @property
    def end(self) -> int:
        """Position after the last token: the length of the sequence once this frame is computed."""
        return self.position + len(self.tokens)

    def __str__(self) -> str:
        return (
            f"frame {self.index} (sequence {self.sequence}, epoch {self.epoch}, "
            f"positions {self.position}..{self.end - 1})"
        )
