"""What each model of a cascade counts, and what follows from it."""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]


class ModelFigures(msgspec.Struct):
    """Of one model below the target, cumulative since its process started; times in nanoseconds.

    A verification is a pass over at least one token that the next smaller model wrote; a plain step finds none.
    """

    name: str
    device: str = "cpu"
    written: Count = 0  # tokens of its own
    verifications: Count = 0
    plain: Count = 0  # steps without a draft to verify
    judged: Count = 0  # drafts of the next smaller model that were found right or wrong
    accepted: Count = 0  # of these
    waiting: Count = 0  # drafts that there were at the beginning of verifications, in sum
    adopted: Count = 0  # tokens taken over from the next bigger model
    undone: Count = 0  # tokens that the next bigger model has contradicted, and what followed them
    filled: Count = 0  # rows computed for tokens it had not written: prompts and what it had adopted
    busy_ns: Count = 0  # computing, or asleep in place of it
    total_ns: Count = 0

    @property
    def acceptance(self) -> float | None:
        """Share of the next smaller model's drafts that were right; None where none was judged."""
        return self.accepted / self.judged if self.judged else None

    @property
    def busy(self) -> float:
        """Share of its time spent computing."""
        return self.busy_ns / self.total_ns if self.total_ns else 0.0
