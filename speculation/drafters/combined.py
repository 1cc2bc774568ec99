"""Two drafters as one: n-gram lookup where it has lately been the better guess, the draft module otherwise."""

from collections.abc import Sequence

from speculation.drafters.base import Draft, Drafter
from speculation.drafters.ngram import NgramDrafter
from workers.messages import Sampling, Tap

_MEMORY = 0.9  # weight of the past in a running precision
# Before anything is known: a long match is worth more than the module, a short one less.
_PRIOR_MODULE = 0.6
_PRIOR_NGRAM = (0.1, 0.2, 0.4, 0.65, 0.8, 0.9)  # by length of the match; longer ones count as the last


class CombinedDrafter(Drafter):
    """Compares running precisions, one for each length of an n-gram match and one for the module.

    The module is not asked where the lookup is preferred; its persistent rows are caught up with when it is next asked.
    """

    def __init__(self, module: Drafter, ngram: NgramDrafter) -> None:
        self.anchors = module.anchors
        self._module = module
        self._ngram = ngram
        self._of_module = _PRIOR_MODULE
        self._of_ngram = list(_PRIOR_NGRAM)
        # What each of them guessed, by position: the n-gram's token with its length, and the module's token.
        self._found: dict[int, tuple[int, int]] = {}
        self._guessed: dict[int, int] = {}

    def begin(self, prompt: Sequence[int], sampling: Sampling, epoch: int) -> None:
        """Starts both, with the precisions of no text in particular."""
        self._module.begin(prompt, sampling, epoch)
        self._ngram.begin(prompt, sampling, epoch)
        self._of_module = _PRIOR_MODULE
        self._of_ngram = list(_PRIOR_NGRAM)
        self._found.clear()
        self._guessed.clear()

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Marks the guesses for the newest verified token right or wrong."""
        position = count - 1
        token = tokens[position]
        if (found := self._found.pop(position, None)) is not None:
            rank = self._rank(found[1])
            self._of_ngram[rank] = _mixed(self._of_ngram[rank], found[0] == token)
        if (guess := self._guessed.pop(position, None)) is not None:
            self._of_module = _mixed(self._of_module, guess == token)
        self._module.verified(tokens, count)
        self._ngram.verified(tokens, count)

    def rejected(self, position: int, epoch: int) -> None:
        """Guesses behind a wrong draft were guesses about another text."""
        for guesses in (self._found, self._guessed):
            for later in [at for at in guesses if at > position]:
                del guesses[later]
        self._module.rejected(position, epoch)
        self._ngram.rejected(position, epoch)

    def tap(self, tap: Tap) -> None:
        """For the module."""
        self._module.tap(tap)

    def advance(self) -> bool:
        """The module's work ahead."""
        return self._module.advance()

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        """The lookup's token where its matches of this length have been right more often than the module."""
        found = self._ngram.look_up(tokens)
        if found is not None:
            self._found[len(tokens)] = found
            if self._of_ngram[self._rank(found[1])] > self._of_module:
                return Draft((found[0],))
        draft = self._module.draft(tokens)
        if draft is not None:
            self._guessed[len(tokens)] = draft.token
        return draft

    def _rank(self, length: int) -> int:
        return min(length, len(self._of_ngram)) - 1


def _mixed(precision: float, right: bool) -> float:
    return _MEMORY * precision + (1 - _MEMORY) * right
