"""Two drafters as one: n-gram lookup where it has lately been the better guess, the draft module otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass

from speculation.drafters.base import Draft, Drafter, Start
from speculation.drafters.ngram import NgramDrafter
from workers.messages import Sampling, Tap

_MEMORY = 0.9  # weight of the past in a running precision
_NGRAM_PRIORS = (0.1, 0.25, 0.4, 0.6, 0.75, 0.85)  # by length of the match; longer ones count as the last
_MODULE_PRIORS = tuple((i + 0.5) / 10 for i in range(10))  # by tenths of the module's confidence
_BEYOND_DOUBT = 0.95  # precision of a lookup for which the module need not be asked


@dataclass
class _Guess:
    token: int
    kind: int  # index of the precision that speaks for it


class _Record:
    """How often one drafter's guesses of each kind have lately been right, and its guesses still to be judged."""

    def __init__(self, priors: Sequence[float]) -> None:
        self._priors = priors
        self._precision = list(priors)
        self._open: dict[int, _Guess] = {}

    def restart(self) -> None:
        self._precision = list(self._priors)
        self._open.clear()

    def note(self, position: int, token: int, kind: int) -> float:
        """Keeps a guess for later; returns what its kind's precision is."""
        guess = _Guess(token, min(kind, len(self._precision) - 1))
        self._open[position] = guess
        return self._precision[guess.kind]

    def judge(self, position: int, token: int) -> None:
        """The token at `position` is known."""
        guess = self._open.pop(position, None)
        if guess is not None:
            right = guess.token == token
            self._precision[guess.kind] = _MEMORY * self._precision[guess.kind] + (1 - _MEMORY) * right

    def drop_after(self, position: int) -> None:
        """What was guessed behind a wrong draft was guessed about another text."""
        self._open = {at: guess for at, guess in self._open.items() if at <= position}


class CombinedDrafter(Drafter):
    """Takes the guess whose kind has been right more often: a lookup by length of its match, the module by confidence.

    Where the lookup is beyond doubt the module is not even asked; it catches up when it next is.
    """

    def __init__(self, module: Drafter, ngram: NgramDrafter) -> None:
        self.anchors = module.anchors
        self._module = module
        self._ngram = ngram
        self._module_record = _Record(_MODULE_PRIORS)
        self._ngram_record = _Record(_NGRAM_PRIORS)

    def kept(self, slot: int) -> int | None:
        """What the module has kept."""
        return self._module.kept(slot)

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Starts both, with the precisions of no text in particular."""
        self._module.begin(prompt, sampling, start)
        self._ngram.begin(prompt, sampling, start)
        self._module_record.restart()
        self._ngram_record.restart()

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Judges the guesses for the newest verified token."""
        for record in (self._module_record, self._ngram_record):
            record.judge(count - 1, tokens[count - 1])
        self._module.verified(tokens, count)
        self._ngram.verified(tokens, count)

    def rejected(self, position: int, epoch: int) -> None:
        """Forgets guesses about a text that is not to be."""
        for record in (self._module_record, self._ngram_record):
            record.drop_after(position)
        self._module.rejected(position, epoch)
        self._ngram.rejected(position, epoch)

    def tap(self, tap: Tap) -> None:
        """For the module."""
        self._module.tap(tap)

    def advance(self) -> bool:
        """The module's work ahead."""
        return self._module.advance()

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        """The better guess; where only the module's is worth having, None until it is there."""
        position = len(tokens)
        found = self._ngram.look_up(tokens)
        lookup = 0.0 if found is None else self._ngram_record.note(position, found[0], found[1] - 1)
        if found is not None and lookup >= _BEYOND_DOUBT:
            return Draft((found[0],), lookup)
        guess = self._module.draft(tokens)
        if guess is None:
            return None
        confidence = 0.0 if guess.confidence is None else guess.confidence
        module = self._module_record.note(position, guess.token, int(10 * confidence))
        if found is None or module >= lookup:
            return guess
        return Draft((found[0], *(token for token in guess.candidates if token != found[0])), lookup)
