"""What the schedule says: which frame it would send next, and what follows from an event."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from speculation.decisions.drafts.tree import Guess, Node
from workers.shared.messages import Rollback

Finish = Literal["stop", "length", "abort"]
FrameKind = Literal["certain", "draft", "prompt"]
FRAME_KINDS: tuple[FrameKind, ...] = get_args(FrameKind)


@dataclass(frozen=True)
class Step:
    """What follows from one event. `control` goes to every stage before anything else happens."""

    control: Sequence[Rollback] = ()
    tokens: Sequence[int] = ()  # newly verified
    finish: Finish | None = None  # after the last token
    rejected: bool = False  # the last token stands where all drafts were wrong
    guesses: Sequence[Guess | None] = ()  # for each of the tokens, what drafts in its place were taken from
    right: Sequence[tuple[Node, int]] = ()  # the first tokens, as drafts, and the slots that they were in
