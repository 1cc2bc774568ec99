"""Two drafters as one: the draft module, or n-gram lookup where that is the better guess or saves time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from speculation.drafters.base import Draft, Drafter, Start
from speculation.drafters.ngram import NgramDrafter
from workers.messages import Sampling, Tap

_MEMORY = 0.9  # weight of the past in a running precision
_NGRAM_PRIORS = (0.1, 0.25, 0.4, 0.6, 0.75, 0.85)  # precision by length of the match; longer ones count as the last
_BEYOND_DOUBT = 0.95  # precision of a lookup for which the module is not asked, though it has a device to itself
_GOOD_ENOUGH = 0.6  # the same where a draft of the module keeps the stages waiting
_LONG_MATCH = 4  # tokens
_UNSURE = 0.4  # confidence of the module below which a long match may be the better guess
_FADING = 0.98  # weight of the past when the two disagree


class _Precision:
    """How often lookups have lately been right, by length of their match."""

    def __init__(self) -> None:
        self._values = list(_NGRAM_PRIORS)
        self._open: dict[int, tuple[int, int]] = {}  # by position: index of the precision, token

    def note(self, position: int, token: int, length: int) -> float:
        """Keeps a lookup until its position is verified; returns what its kind's precision is."""
        kind = min(length, len(self._values)) - 1
        self._open[position] = kind, token
        return self._values[kind]

    def judge(self, position: int, token: int) -> None:
        """The token at `position` is known."""
        if position in self._open:
            kind, guess = self._open.pop(position)
            self._values[kind] = _MEMORY * self._values[kind] + (1 - _MEMORY) * (guess == token)

    def drop_after(self, position: int) -> None:
        """What was looked up behind a wrong draft was looked up for another text."""
        self._open = {at: guess for at, guess in self._open.items() if at <= position}


@dataclass
class _Disagreements:
    """Which of the two was right where they guessed differently, for lookups that may be the better guess or not."""

    lookup_wins: dict[bool, float] = field(default_factory=lambda: {True: 1.5, False: 0.0})
    module_wins: dict[bool, float] = field(default_factory=lambda: {True: 1.0, False: 8.0})
    _open: dict[int, tuple[bool, int, int]] = field(default_factory=dict)  # by position: kind, lookup, module

    def prefers_lookup(self, position: int, kind: bool, lookup: int, module: int) -> bool:
        """Whether the lookup is the better bet; keeps both until `position` is verified."""
        self._open[position] = kind, lookup, module
        return self.lookup_wins[kind] > self.module_wins[kind]

    def judge(self, position: int, token: int) -> None:
        """The token at `position` is known."""
        if position in self._open:
            kind, lookup, module = self._open.pop(position)
            self.lookup_wins[kind] = _FADING * self.lookup_wins[kind] + (lookup == token)
            self.module_wins[kind] = _FADING * self.module_wins[kind] + (module == token)

    def drop_after(self, position: int) -> None:
        """See `_Precision`."""
        self._open = {at: guesses for at, guesses in self._open.items() if at <= position}


class CombinedDrafter(Drafter):
    """Drafts the module's guess, but for a lookup that has been right more often where the two disagree.

    Where a lookup is good enough the module is not even asked; it catches up when it next is. How good that is depends
    on what asking costs: with a device to itself the module works while the stages do, on their cores it delays them.
    """

    def __init__(self, module: Drafter, ngram: NgramDrafter, *, module_delays_stages: bool) -> None:
        self.anchors = module.anchors
        self._module = module
        self._ngram = ngram
        self._enough = _GOOD_ENOUGH if module_delays_stages else _BEYOND_DOUBT
        self._greedy = True
        self._precision = _Precision()
        self._disagreements = _Disagreements()

    def kept(self, slot: int) -> int | None:
        """What the module has kept."""
        return self._module.kept(slot)

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Starts both, with the experience of no text in particular."""
        self._module.begin(prompt, sampling, start)
        self._ngram.begin(prompt, sampling, start)
        self._greedy = sampling.temperature == 0
        self._precision = _Precision()
        self._disagreements = _Disagreements()

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Judges the guesses for the newest verified token."""
        self._precision.judge(count - 1, tokens[count - 1])
        self._disagreements.judge(count - 1, tokens[count - 1])
        self._module.verified(tokens, count)
        self._ngram.verified(tokens, count)

    def rejected(self, position: int, epoch: int) -> None:
        """Forgets guesses about a text that is not to be."""
        self._precision.drop_after(position)
        self._disagreements.drop_after(position)
        self._module.rejected(position, epoch)
        self._ngram.rejected(position, epoch)

    def tap(self, tap: Tap) -> None:
        """For the module."""
        self._module.tap(tap)

    def advance(self) -> bool:
        """The module's work ahead."""
        return self._module.advance()

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        """The better guess; where the module has to be asked, None until its guess is there."""
        position = len(tokens)
        found = self._ngram.look_up(tokens)
        if found is None:
            return self._module.draft(tokens)
        lookup, length = found
        precision = self._precision.note(position, lookup, length)
        if precision >= self._enough:
            return Draft((lookup,), precision)
        guess = self._module.draft(tokens)
        if guess is None or guess.token == lookup:
            return guess
        # The probability of a sampled token says less about whether the target samples it too.
        unsure = self._greedy and (guess.confidence or 0.0) < _UNSURE and length >= _LONG_MATCH
        if self._disagreements.prefers_lookup(position, unsure, lookup, guess.token):
            return Draft((lookup, *(token for token in guess.candidates if token != lookup)), precision)
        return guess
