"""The events of a live trace. Times are microseconds of rank 0's monotonic clock; frames go by `name_of`.

What becomes of a draft follows: it is right if the token that leaves at its position is the same, and what was in
flight behind a wrong one is discarded.
"""

from msgspec import Struct

from workers.shared.frames import REAL, Frame, Natural

_NAMES = 2**32  # what every reader of JSON takes for a whole number


def name_of(index: int) -> int:
    """The name of a frame with this announcement number: no two in flight have the same."""
    return index % _NAMES


class Began(Struct, frozen=True, array_like=True, tag="began"):
    """A request has taken a slot."""

    at: int
    slot: Natural
    id: str
    prompt: int  # tokens
    reused: int  # of these, not computed again


class Entered(Struct, frozen=True, array_like=True, tag="entered"):
    """A frame was announced."""

    at: int
    frame: int
    slot: Natural
    epoch: int
    position: int
    width: int  # tokens
    kind: str  # as of now: certain, draft, prompt
    tokens: tuple[int, ...] = ()  # but not of prompts

    @classmethod
    def of(cls, at: int, frame: Frame, kind: str) -> "Entered":
        """What is told of `frame`: of several drafts at one position, the likeliest."""
        rows = range(len(frame.tokens))
        tokens = () if kind == "prompt" else tuple(frame.tokens[row] for row in rows if frame.place(row).slot == REAL)
        width = len(frame.tokens)
        return cls(at, name_of(frame.index), frame.sequence, frame.epoch, frame.position, width, kind, tokens)


class Passed(Struct, frozen=True, array_like=True, tag="passed"):
    """A stage is done with a frame, which it has computed, or passed on dead."""

    at: int
    frame: int
    stage: Natural
    worked: int  # microseconds
    computed: bool


class Left(Struct, frozen=True, array_like=True, tag="left"):
    """A frame that was alive has left the pipeline, and its sample has been judged."""

    at: int
    frame: int
    slot: Natural
    position: int  # of the first of `tokens`
    tokens: tuple[int, ...]  # newly verified
    right: int  # how many of these were drafts, from the first on
    wrong: bool  # whether the last one stands where a draft was wrong
    cycles: int  # of the request so far (docs/design.md, "Words")
    drafter: str  # that is in use from here on


class Ended(Struct, frozen=True, array_like=True, tag="ended"):
    """A request has left its slot; drafts counted over its life."""

    at: int
    slot: Natural
    drafted: int
    accepted: int
    rejected: int
    discarded: int
    cycles: int


TraceEvent = Began | Entered | Passed | Left | Ended
