"""Prompt lookup: what followed the last time these tokens stood here (arXiv 2304.04487; prompt-lookup decoding)."""

from collections.abc import Callable, Sequence

from speculation.drafters.base import Draft, Drafter, Start
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.messages import Sampling

_PIECE = 256  # tokens, which take a fraction of a millisecond


def load(engine: EngineConfig, vocab_size: int) -> "Callable[[int], NgramDrafter]":
    """See `Loader`."""
    longest, shortest = engine.drafter.ngram_max, engine.drafter.ngram_min
    if not 1 <= shortest <= longest:
        raise ConfigError("--ngram-min must be at least 1 and at most --ngram-max")
    return lambda slot: NgramDrafter(longest, shortest)


class NgramDrafter(Drafter):
    """Looks the longest suffix up in prompt and verified output; the latest earlier occurrence wins."""

    cheap = True

    def __init__(self, longest: int, shortest: int) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError("an n-gram drafter needs 1 <= shortest <= longest")
        self._lengths = range(longest, shortest - 1, -1)
        self._follower: dict[tuple[int, ...], int] = {}
        self._prompt: Sequence[int] = ()
        self._indexed = 0  # positions of the prompt

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Forgets the text before; the prompt is indexed by `advance`, or when it is first needed."""
        self._follower.clear()
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
        return self._draft(self.look_up(tokens, count - 1))

    def look_up(self, tokens: Sequence[int], end: int | None = None) -> tuple[int, int] | None:
        """The token that followed the longest known suffix of `tokens[:end]`, and that suffix's length."""
        self._finish_prompt()
        end = len(tokens) if end is None else end
        for length in self._lengths:
            if length <= end:
                follower = self._follower.get(tuple(tokens[end - length : end]))
                if follower is not None:
                    return follower, length
        return None

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        """What `look_up` finds."""
        return self._draft(self.look_up(tokens))

    @staticmethod
    def _draft(found: tuple[int, int] | None) -> Draft | None:
        return None if found is None else Draft((found[0],))

    def _finish_prompt(self) -> None:
        while self._indexed < len(self._prompt):
            self.advance()

    def _index(self, tokens: Sequence[int], end: int) -> None:
        for length in self._lengths:
            if length <= end:
                self._follower[tuple(tokens[end - length : end])] = tokens[end]
