"""A text that is made up together with the drafts for it, to rehearse an acceptance that no drafter has yet earned.

Both sides make the same choices from position and token, so nothing has to be agreed upon on the way.
"""

from bisect import bisect
from hashlib import blake2b
from itertools import accumulate
from math import log2, pow
from typing import NamedTuple

CANDIDATES = 16

# How likely the first candidate is right where the text is easy, or middling, or hard. A drafter knows which it is.
_EASY, _MIDDLE, _HARD = 0.98, 0.80, 0.40
_MIDDLING = 0.25  # share of the text


class MadeUpGuess(NamedTuple):
    """What a drafter would think of one position."""

    candidates: tuple[int, ...]
    chances: tuple[float, ...]  # of each candidate to be the token


class MadeUpText:
    """Of each token that follows another at some position: the candidates for it, and which of them it is."""

    def __init__(self, vocab_size: int, acceptance: float, rescue: float) -> None:
        """A first candidate is right with the probability `acceptance`, on the average.

        With twice as many candidates, the share `rescue` of what was missed would be found.
        """
        self._vocab_size = vocab_size
        self._most = min(CANDIDATES, vocab_size - 1)
        self._fall: float = -log2(1 - rescue) if rescue < 1 else float("inf")
        self._kinds, shares = _mixture(acceptance)
        self._bounds = [*accumulate(shares)][:-1]

    def guess(self, position: int, before: int, count: int = CANDIDATES) -> MadeUpGuess:
        """What is drafted for `position`, where the token `before` is drafted or verified in front of it.

        So many candidates at most, the likeliest first.
        """
        kind, start, _ = self._draw(position, before)
        count = min(count, self._most)
        misses = [1.0, *(self._missed(kind, rank) for rank in range(1, count + 1))]
        candidates = tuple((start + rank) % self._vocab_size for rank in range(count))
        return MadeUpGuess(candidates, tuple(misses[rank] - misses[rank + 1] for rank in range(count)))

    def token(self, position: int, before: int) -> int:
        """The token at `position` behind `before`: a candidate, or the one behind the last of them."""
        kind, start, chance = self._draw(position, before)
        rank = 0
        while rank < self._most and chance < self._missed(kind, rank + 1):
            rank += 1
        return (start + rank) % self._vocab_size

    def _draw(self, position: int, before: int) -> tuple[float, int, float]:
        """The kind of text, the first candidate, and the chance that decides."""
        drawn = blake2b(b"%d %d" % (position, before), digest_size=12).digest()
        kind, start, chance = (int.from_bytes(drawn[at : at + 4]) / 2**32 for at in (0, 4, 8))
        return self._kinds[bisect(self._bounds, kind)], int(start * self._vocab_size), chance

    def _missed(self, kind: float, rank: int) -> float:
        """The probability that none of the first `rank` candidates is right."""
        return (1 - kind) * pow(rank, -self._fall)


def _mixture(acceptance: float) -> tuple[list[float], list[float]]:
    """Kinds of text and their shares, with `acceptance` on the average; one kind where no mixture has that."""
    rest = 1 - _MIDDLING
    hard = (_EASY * rest + _MIDDLE * _MIDDLING - acceptance) / (_EASY - _HARD)
    if not 0 <= hard <= rest:
        return [acceptance], [1.0]
    return [_EASY, _MIDDLE, _HARD], [rest - hard, _MIDDLING, hard]
