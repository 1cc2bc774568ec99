"""Prompt lookup: what followed the last time these tokens stood here (arXiv 2304.04487; prompt-lookup decoding)."""

from collections.abc import Callable, Sequence

from speculation.drafters.base import Draft, Drafter, Start
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.messages import Sampling

_PIECE = 256  # tokens, which take a fraction of a millisecond
PRECISION = (0.1, 0.25, 0.4, 0.6, 0.75, 0.85)  # by length of the match; longer ones are like the last


def load(engine: EngineConfig, vocab_size: int) -> "Callable[[int], NgramDrafter]":
    """See `Loader`."""
    longest, shortest = engine.drafter.ngram_max, engine.drafter.ngram_min
    if not 1 <= shortest <= longest:
        raise ConfigError("--ngram-min must be at least 1 and at most --ngram-max")
    return lambda slot: NgramDrafter(longest, shortest, engine.breadth)


class NgramDrafter(Drafter):
    """Looks the longest suffix up in prompt and verified output; the latest earlier occurrence wins.

    With branches, what followed other occurrences, and shorter suffixes, comes behind it.
    """

    cheap = True

    def __init__(self, longest: int, shortest: int, most: int = 1) -> None:
        """Looks suffixes of `shortest` to `longest` tokens up, and finds at most so many candidates."""
        if not 1 <= shortest <= longest:
            raise ValueError("an n-gram drafter needs 1 <= shortest <= longest")
        self._lengths = range(longest, shortest - 1, -1)
        self._most = most
        self._followers: dict[tuple[int, ...], tuple[int, ...]] = {}  # the latest first
        self._prompt: Sequence[int] = ()
        self._indexed = 0  # positions of the prompt

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Forgets the text before; the prompt is indexed by `advance`, or when it is first needed."""
        self._followers.clear()
        self._prompt = prompt
        self._indexed = 0

    def advance(self) -> bool:
        """Indexes a piece of the prompt: samples of others do not wait for all of a long one."""
        end = min(self._indexed + _PIECE, len(self._prompt))
        for position in range(self._indexed, end):
            self._index(self._prompt, position)
        self._indexed = end
        return end < len(self._prompt)

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Indexes the newest verified token under the n-grams before it."""
        self._finish_prompt()
        self._index(tokens, count - 1)

    def hindsight(self, tokens: Sequence[int], count: int) -> Draft | None:
        """What `look_up` finds before the newest verified token."""
        return self._draft(self._find(tokens, count - 1))

    def look_up(self, tokens: Sequence[int], end: int | None = None) -> tuple[int, int] | None:
        """The token that followed the longest known suffix of `tokens[:end]`, and that suffix's length."""
        return next(iter(self._find(tokens, len(tokens) if end is None else end).items()), None)

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        """What followed, the longest match first."""
        return self._draft(self._find(tokens, len(tokens)))

    def _find(self, tokens: Sequence[int], end: int) -> dict[int, int]:
        """Tokens that followed known suffixes of `tokens[:end]`, the best first, with the lengths of these."""
        self._finish_prompt()
        found: dict[int, int] = {}
        for length in self._lengths:
            if length <= end:
                for follower in self._followers.get(tuple(tokens[end - length : end]), ()):
                    found.setdefault(follower, length)
                    if len(found) == self._most:
                        return found
        return found

    def _draft(self, found: dict[int, int]) -> Draft | None:
        if not found:
            return None
        if self._most == 1:
            return Draft(tuple(found))
        left, chances = 1.0, []
        for length in found.values():
            chances.append(left * PRECISION[min(length, len(PRECISION)) - 1])
            left -= chances[-1]
        return Draft(tuple(found), chances=tuple(chances))

    def _finish_prompt(self) -> None:
        while self._indexed < len(self._prompt):
            self.advance()

    def _index(self, tokens: Sequence[int], end: int) -> None:
        for length in self._lengths:
            if length <= end:
                key, token = tuple(tokens[end - length : end]), tokens[end]
                known = self._followers.get(key, ()) if self._most > 1 else ()
                self._followers[key] = (token, *(other for other in known if other != token))[: self._most]
