"""Two drafters as one: the draft module, or n-gram lookup where that is the better guess or saves time."""

from collections.abc import Sequence
from typing import NamedTuple

from speculation.drafters.base import Answer, Draft, Drafter, DrafterWrapper, Start
from speculation.drafters.ngram import PRECISION, NgramDrafter
from workers.shared.messages import Sampling

_MEMORY = 0.9  # weight of the past in a running precision
_BEYOND_DOUBT = 0.95  # precision of a lookup for which the module is not asked, though it has a device to itself
_GOOD_ENOUGH = 0.6  # the same where a draft of the module keeps the stages waiting
_LONG_MATCH = 4  # tokens
_UNSURE = 0.4  # confidence of the module below which a long match may be the better guess
_FADING = 0.98  # weight of the past when the two disagree


class _Guess(NamedTuple):
    """A lookup for a position that is not verified yet, and the module's guess where it was another one."""

    token: int
    kind: int  # index of its precision
    module: int | None = None
    unsure: bool = False  # a long match against an unsure module


class _Experience:
    """How often lookups have lately been right, by length of their match, and which of the two where they disagreed."""

    def __init__(self) -> None:
        self._precision = list(PRECISION)
        self._lookup_wins = {True: 1.5, False: 0.0}  # by whether the match was long and the module unsure
        self._module_wins = {True: 1.0, False: 8.0}
        self._open: dict[int, _Guess] = {}  # by position

    def note(self, position: int, token: int, length: int) -> float:
        """Keeps a lookup until its position is verified; returns the precision of its kind."""
        kind = min(length, len(self._precision)) - 1
        self._open[position] = _Guess(token, kind)
        return self._precision[kind]

    def prefers_lookup(self, position: int, module: int, *, unsure: bool) -> bool:
        """Whether the lookup noted for `position` is a better bet than the module's other guess."""
        self._open[position] = self._open[position]._replace(module=module, unsure=unsure)
        return self._lookup_wins[unsure] > self._module_wins[unsure]

    def judge(self, position: int, token: int) -> None:
        """The token at `position` is known."""
        guess = self._open.pop(position, None)
        if guess is None:
            return
        right = guess.token == token
        self._precision[guess.kind] = _MEMORY * self._precision[guess.kind] + (1 - _MEMORY) * right
        if guess.module is not None:
            kind = guess.unsure
            self._lookup_wins[kind] = _FADING * self._lookup_wins[kind] + right
            self._module_wins[kind] = _FADING * self._module_wins[kind] + (guess.module == token)

    def drop_after(self, position: int) -> None:
        """What was guessed behind a wrong draft was guessed about another text."""
        self._open = {at: guess for at, guess in self._open.items() if at <= position}


class CombinedDrafter(DrafterWrapper):
    """Wraps the module: drafts its guess, but for a lookup that has been right more often where the two disagree.

    Where a lookup is good enough the module is not even asked; it catches up when it next is. How good that is depends
    on what asking costs: with a device to itself the module works while the stages do, on their cores it delays them.
    """

    def __init__(self, module: Drafter, ngram: NgramDrafter, *, module_delays_stages: bool) -> None:
        super().__init__(module)
        self.parts = {"ngram": ngram, "pdm": module}
        self._ngram = ngram
        self._enough = _GOOD_ENOUGH if module_delays_stages else _BEYOND_DOUBT
        self._greedy = True
        self._experience = _Experience()

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Starts both, with the experience of no text in particular."""
        self._inner.begin(prompt, sampling, start)
        self._ngram.begin(prompt, sampling, start)
        self._greedy = sampling.temperature == 0
        self._experience = _Experience()

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Judges the guesses for the newest verified token."""
        self._experience.judge(count - 1, tokens[count - 1])
        self._inner.verified(tokens, count)
        self._ngram.verified(tokens, count)

    def rejected(self, position: int, epoch: int) -> None:
        """Forgets guesses about a text that is not to be."""
        self._experience.drop_after(position)
        self._inner.rejected(position, epoch)
        self._ngram.rejected(position, epoch)

    def advance(self) -> bool:
        """The work ahead of both."""
        more = self._ngram.advance()
        return self._inner.advance() or more

    def draft(self, tokens: Sequence[int]) -> Answer:
        """The better guess; where the module has to be asked, its guess is waited for."""
        position = len(tokens)
        found = self._ngram.look_up(tokens)
        if found is None:
            return self._inner.draft(tokens)
        lookup, length = found
        precision = self._experience.note(position, lookup, length)
        if precision >= self._enough:
            return Draft((lookup,), precision)
        guess = self._inner.draft(tokens)
        if guess is None:
            return Draft((lookup,), precision)
        if not isinstance(guess, Draft) or guess.token == lookup:
            return guess
        # The probability of a sampled token says less about whether the target samples it too.
        unsure = self._greedy and (guess.confidence or 0.0) < _UNSURE and length >= _LONG_MATCH
        if self._experience.prefers_lookup(position, guess.token, unsure=unsure):
            others = [place for place, token in enumerate(guess.candidates) if token != lookup]
            chances = tuple((1 - precision) * guess.chances[place] for place in others) if guess.chances else ()
            candidates = (lookup, *(guess.candidates[place] for place in others))
            return Draft(candidates, precision, chances=(precision, *chances) if chances else ())
        return guess
