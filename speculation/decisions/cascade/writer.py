"""One model of a cascade at one request: what it computes next, and what its neighbours' words mean. Pure.

It writes ahead of the next bigger model, whose text is what counts, and verifies what the next smaller one has written
ahead of it. Where the bigger one is behind, nothing happens; where it is ahead, its text is taken over; where the two
differ, the own text is cut there first. Keys and values follow the text like everybody else: what they lack of it is
computed in one pass with the next step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from speculation.cascade.messages import OpenText, WriteText
from speculation.decisions.cascade.smaller import Smaller
from speculation.decisions.cascade.texts import Agreement, ModelText
from workers.shared.cascade.figures import ModelFigures
from workers.shared.messages import Sampling

_ROWS = 32  # of one pass over what it has not written: what has been heard meanwhile waits for so long


class Pass(NamedTuple):
    """One pass of the model."""

    position: int  # of the first of `tokens`
    tokens: Sequence[int]
    drafts: Sequence[int] = ()  # the last of `tokens`, which the smaller model has written
    samples: bool = True  # whether tokens are to be sampled, behind the drafts and the token before them


@dataclass(frozen=True)
class Pacing:
    """How models wait for each other."""

    lead: int  # most tokens that a model may be ahead of what it has heard of the next bigger one
    lookahead: int = 0  # drafts that a model waits for; 0: it never waits


class CascadeWriter:
    """The next smaller model is `smaller`, if there is one. Slots may serve one request after the other."""

    def __init__(self, slot: int, capacity: int, pacing: Pacing, figures: ModelFigures, *, smallest: bool) -> None:
        """`capacity` positions have room in the slot; what is done is counted in `figures`."""
        self.smaller = None if smallest else Smaller(slot)
        self.sampling = Sampling(seed=0)
        self._slot = slot
        self._capacity = capacity
        self._pacing = pacing
        self._figures = figures
        self._number: int | None = None  # of the request; None: there is none
        self._take(ModelText(), 0, 0)

    @property
    def held(self) -> list[int]:
        """The tokens whose keys and values are in the slot, from position 0 on."""
        return self.text.tokens[: self._held.at]

    def open(self, message: OpenText, held: int) -> None:
        """A request takes the slot over, which holds keys and values of the first `held` of its tokens."""
        self._number = message.number
        self.sampling = message.sampling
        self._take(ModelText(message.tokens), message.prompt, held)
        if self.smaller is not None:
            self.smaller.open(self.text, message.prompt, message.sampling)

    def close(self) -> None:
        """The bigger model has gone; what is held stays, for whoever comes next."""
        self._number = None

    def heard(self, message: WriteText) -> None:
        """The bigger model has written something. Raises `OutOfStep` for what cannot follow."""
        if message.number != self._number:
            return
        self._bigger.write(message.position, message.tokens)
        reach = self._agreement.reach()
        if reach < len(self._bigger):
            self._figures.undone += len(self.text) - reach
            self._figures.adopted += len(self._bigger) - reach
            self.text.write(reach, self._bigger.tokens[reach:])
        self._hush()

    def work(self, *, patient: bool = True) -> Pass | None:
        """What to compute now; None while there is nothing. `patient`: drafts that it should wait for will come."""
        room = self._room()
        if self._number is None or room <= 0:
            return None
        start, length = self._held.at, len(self.text)
        if length - start > _ROWS:
            return Pass(start, self.text.tokens[start : start + _ROWS], samples=False)
        # A step yields one token more than its drafts.
        drafts = () if self.smaller is None else self.smaller.drafts()[: room - 1]
        if self.smaller is not None and patient and len(drafts) < min(self._pacing.lookahead, room - 1):
            return None
        return Pass(start, [*self.text.tokens[start:], *drafts], drafts)

    def computed(self, work: Pass, written: Sequence[int] = ()) -> None:
        """`work` is done; `written` are the tokens sampled, up to the first that is not the draft in its place."""
        figures = self._figures
        if not work.samples:
            self._held.at += len(work.tokens)
            figures.filled += len(work.tokens)
            return
        right = len(written) - 1  # the drafts
        figures.filled += len(work.tokens) - len(work.drafts) - 1
        figures.written += len(written)
        figures.accepted += right
        figures.judged += min(right + 1, len(work.drafts))
        figures.waiting += len(work.drafts)
        figures.verifications += bool(work.drafts)
        figures.plain += not work.drafts
        self.text.write(len(self.text), written)
        self._held.at = len(self.text) - 1  # the newest token is not computed yet
        self._hush()

    def news(self) -> WriteText | None:
        """What the bigger model has not been told; it counts as told from here on."""
        tokens, told = self.text.tokens, self._told.at
        if self._number is None or told == len(tokens):
            return None
        self._told.at = len(tokens)
        return WriteText(self._slot, self._number, told, tokens[told:])

    def unsampled(self) -> tuple[int, Sequence[int]]:
        """What the tokens before the next step have become since the last: from which position on, and what."""
        start, self._history.at = self._history.at, len(self.text)
        return start, self.text.tokens[start:]

    def _take(self, text: ModelText, prompt: int, held: int) -> None:
        length = len(text)
        self.text = text
        self.prompt = prompt
        self._bigger = ModelText(text.tokens)
        self._agreement = Agreement(text, self._bigger, length)
        self._held = text.follower(min(held, max(0, length - 1)))  # the last one's logits are needed
        self._history = text.follower()
        self._told = text.follower(length)  # the bigger model knows what it has sent

    def _hush(self) -> None:
        """A smaller model that is waited for does not work while this one may not: it hears of nothing new."""
        if self.smaller is not None:
            self.smaller.hushed = self._pacing.lookahead > 0 and self._room() <= 0

    def _room(self) -> int:
        """Tokens that may be written now. Sampling one at a position takes keys and values of all before it."""
        ahead = len(self.text) - len(self._bigger)
        return min(self._pacing.lead - ahead, self._capacity + 1 - len(self.text))
