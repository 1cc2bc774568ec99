"""The interface of a drafter."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

from speculation.decisions.drafts.tree import Draft as Draft
from speculation.decisions.drafts.tree import Node
from speculation.decisions.estimates import Choice, Judgement
from workers.shared.cascade.figures import ModelFigures
from workers.shared.config import EngineConfig
from workers.shared.messages import Sampling, Tap


class Pending(Enum):
    """Says that there will be a guess, once something has arrived or has been computed that is on its way."""

    PENDING = "pending"


PENDING: Final = Pending.PENDING

# A guess, or none for this text (None), or none yet (PENDING). A frame goes without what is not to be had; it waits
# for what is pending.
Answer = Draft | Pending | None


class DraftSource(Protocol):
    """Where drafts come from that are made beside the engine's loop, for the drafters of all slots."""

    def fileno(self) -> int:
        """A descriptor that is readable while `arrived` has something to do; always the same."""

    def arrived(self) -> None:
        """Takes in what has come; must not fail, nor wait."""

    def figures(self) -> Sequence[ModelFigures]:
        """Of the models that draft there, the smallest first."""

    def dismiss(self) -> None:
        """Nothing will be asked for any more: whoever makes drafts there may leave."""

    def close(self) -> None:
        """Lets go of the descriptor."""


class Deciding(Protocol):
    """What there is to know of, and to tell, whoever decides for a request (`speculation.decisions.controller`)."""

    @property
    def choice(self) -> Choice:
        """What drafts for now."""

    @property
    def listening(self) -> bool:
        """Whether hidden states are wanted."""

    def deafen(self) -> None:
        """Hidden states that `choice` does not need have been lost."""

    def foreseen(self, choice: Choice, verdict: Judgement) -> None:
        """What would have become of the draft of `choice`, which is not in use, for the newest token."""

    def answered(self) -> None:
        """The choice in use keeps up with the text."""

    def overrule(self, position: int, answer: "Answer") -> "Answer":
        """What is drafted for `position` in place of the drafter's `answer`: that, but in a rehearsal."""

    def sampled(self, now: float, cycles: int, tokens: int, *, rejected: bool, alone: bool = True) -> None:
        """`tokens` were verified at `now` seconds, and cost `cycles` pipeline cycles; `rejected`: a draft was wrong."""

    def end(self) -> None:
        """The request has ended."""


Holding = TypeVar("Holding", bound="Drafter")


class Start(NamedTuple):
    """Where a request starts."""

    epoch: int = 0
    reused: int = 0  # positions of the prompt that are not computed again
    session: "Deciding | None" = None  # says which drafter is asked
    source: "Drafter | None" = None  # of another slot: the drafter of that from which they are copied

    def copies_from(self, kind: type[Holding]) -> Holding | None:
        """What the drafter of the other slot holds for one of the same `kind`, if there is another slot."""
        holding = None if self.source is None else self.source.holding()
        return holding if isinstance(holding, kind) else None


class Drafter(ABC):
    """Guesses one token at a time, for the requests that have one KV slot, one after the other.

    A guess may be wrong or missing, never harmful. Only `draft` must be written; the other methods tell what happens,
    to those that want to know.
    """

    anchors: tuple[int, ...] = ()  # hidden states of the target that it wants tapped, by index; 0 is never among them
    cheap: bool = False  # work ahead costs next to nothing: it is done whether the drafter is chosen or not
    source: DraftSource | None = None  # what wakes the engine: drafts may be had that were not before
    parts: Mapping[str, "Drafter"] = MappingProxyType({})  # that it asks, by name; it tells them what happens

    def kept(self) -> int | None:
        """Positions of the slot whose hidden states it has kept; None if it needs none."""
        return None

    def holding(self) -> "Drafter":
        """What holds something of the slot's text, for the drafter of another slot to copy from."""
        return self

    def prepare(self, sampling: Sampling) -> None:  # noqa: B027
        """A request with this sampling will begin: what takes long may start beside. Not told of every one."""

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:  # noqa: B027
        """A request starts; of the slot only the reused positions are still true."""

    def verified(self, tokens: Sequence[int], count: int) -> None:  # noqa: B027
        """One more token is verified: `tokens[:count]` are final; what follows are drafts."""

    def rejected(self, position: int, epoch: int) -> None:  # noqa: B027
        """The draft at `position` was wrong; frames from there on carry `epoch`. `verified` follows."""

    def tap(self, tap: Tap) -> None:  # noqa: B027
        """Hidden states of the slot have arrived."""

    def deafen(self) -> None:  # noqa: B027
        """Hidden states do not come any more, and no draft that needs them is asked for, until the next request."""

    def hindsight(self, tokens: Sequence[int], count: int) -> Answer:
        """What it would have drafted for `tokens[count - 1]`; PENDING where that cannot be told for nothing.

        Asked before `verified`.
        """
        return PENDING

    def frames(self, width: int) -> None:  # noqa: B027
        """From here on, frames hold so many tokens."""

    def level(self, tokens: Sequence[int], verified: int, leaves: Sequence[Node]) -> None:  # noqa: B027
        """`draft` will be asked what follows each of `leaves`, in turn: what can be computed for all at once may be.

        `tokens[:verified]` are final; each leaf knows the drafts that lead to it.
        """

    def sent(self, frame: int, nodes: Sequence[Node]) -> None:  # noqa: B027
        """The frame of this number is announced, whose rows are `nodes`; told of where drafts may branch."""

    def chosen(self, node: Node, slot: int) -> None:  # noqa: B027
        """A draft has turned out right, of which `verified` tells next; until now its place was in `slot`."""

    def advance(self) -> bool:
        """Does a little of what can be done ahead, while nothing else is to be done; returns whether more is left."""
        return False

    @abstractmethod
    def draft(self, tokens: Sequence[int]) -> Answer:
        """The token after `tokens`, which ends with drafts that are not verified yet.

        Where there is none the engine asks again after the next event. With branches, it is asked of one text after the
        other that differ in their drafts; none may be kept beyond the call.
        """


# Makes the drafter of a KV slot, given its number, with all that it will need in memory.
Maker = Callable[[int], Drafter]

# Loads what the drafters of all slots share. Given the vocabulary's size; raises `ConfigError` naming the flag.
Loader = Callable[[EngineConfig, int], Maker]


def chunk_end(start: int, prompt: int, size: int) -> int:
    """Where the chunk of work ahead that begins at position `start` ends: at multiples of `size`, and with the prompt.

    The cuts are the same whenever the work is done, so what is computed does not depend on timing.
    """
    end = start + size - start % size
    return min(end, prompt) if start < prompt else end


class DrafterWrapper(Drafter):
    """Is the drafter it wraps, but for what a subclass does differently."""

    def __init__(self, inner: Drafter) -> None:
        self.anchors = inner.anchors
        self.source = inner.source
        self.parts = inner.parts
        self._inner = inner

    def kept(self) -> int | None:
        """What the wrapped drafter has kept."""
        return self._inner.kept()

    def holding(self) -> Drafter:
        """Of the wrapped drafter."""
        return self._inner.holding()

    def prepare(self, sampling: Sampling) -> None:
        """For the wrapped drafter."""
        self._inner.prepare(sampling)

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """For the wrapped drafter."""
        self._inner.begin(prompt, sampling, start)

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """For the wrapped drafter."""
        self._inner.verified(tokens, count)

    def rejected(self, position: int, epoch: int) -> None:
        """For the wrapped drafter."""
        self._inner.rejected(position, epoch)

    def tap(self, tap: Tap) -> None:
        """For the wrapped drafter."""
        self._inner.tap(tap)

    def deafen(self) -> None:
        """For the wrapped drafter."""
        self._inner.deafen()

    def hindsight(self, tokens: Sequence[int], count: int) -> Answer:
        """What the wrapped drafter would have drafted."""
        return self._inner.hindsight(tokens, count)

    def frames(self, width: int) -> None:
        """For the wrapped drafter."""
        self._inner.frames(width)

    def level(self, tokens: Sequence[int], verified: int, leaves: Sequence[Node]) -> None:
        """For the wrapped drafter."""
        self._inner.level(tokens, verified, leaves)

    def sent(self, frame: int, nodes: Sequence[Node]) -> None:
        """For the wrapped drafter."""
        self._inner.sent(frame, nodes)

    def chosen(self, node: Node, slot: int) -> None:
        """For the wrapped drafter."""
        self._inner.chosen(node, slot)

    def advance(self) -> bool:
        """The wrapped drafter's work ahead."""
        return self._inner.advance()

    def draft(self, tokens: Sequence[int]) -> Answer:
        """The wrapped drafter's answer."""
        return self._inner.draft(tokens)
