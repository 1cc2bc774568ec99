"""A text that is made up together with the drafts for it, to rehearse an acceptance that no drafter has yet earned.

Both sides make the same choices from position and token, so nothing has to be agreed upon on the way.
"""

from bisect import bisect
from hashlib import blake2b
from itertools import accumulate, pairwise
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
        kinds, shares = _mixture(acceptance)
        most, fall = min(CANDIDATES, vocab_size - 1), -log2(1 - rescue) if rescue < 1 else float("inf")
        self._kinds = [_Kind.with_chance(first, most, fall) for first in kinds]
        self._bounds = [*accumulate(shares)][:-1]

    def guess(self, position: int, before: int, count: int = CANDIDATES) -> MadeUpGuess:
        """What is drafted for `position`, where the token `before` is drafted or verified in front of it.

        So many candidates at most, the likeliest first.
        """
        kind, start, _ = self._draw(position, before)
        chances = kind.chances[:count]
        return MadeUpGuess(tuple((start + rank) % self._vocab_size for rank in range(len(chances))), chances)

    def token(self, position: int, before: int) -> int:
        """The token at `position` behind `before`: a candidate, or the one behind the last of them."""
        kind, start, chance = self._draw(position, before)
        missed = kind.missed  # less with every rank
        return (start + sum(chance < least for least in missed)) % self._vocab_size

    def _draw(self, position: int, before: int) -> "tuple[_Kind, int, float]":
        """The kind of text, the first candidate, and the chance that decides."""
        drawn = blake2b(b"%d %d" % (position, before), digest_size=12).digest()
        kind, start, chance = (int.from_bytes(drawn[at : at + 4]) / 2**32 for at in (0, 4, 8))
        return self._kinds[bisect(self._bounds, kind)], int(start * self._vocab_size), chance


class _Kind(NamedTuple):
    """A kind of text."""

    missed: tuple[float, ...]  # the probability that none of the first 1, 2, 3, ... candidates is right
    chances: tuple[float, ...]  # of each candidate

    @classmethod
    def with_chance(cls, first: float, most: int, fall: float) -> "_Kind":
        """The first of `most` candidates is right with the chance `first`; twice as many miss `2**-fall` as often."""
        missed = tuple((1 - first) * pow(rank, -fall) for rank in range(1, most + 1))
        return cls(missed, tuple(before - after for before, after in pairwise((1.0, *missed))))


def _mixture(acceptance: float) -> tuple[list[float], list[float]]:
    """Kinds of text and their shares, with `acceptance` on the average; one kind where no mixture has that."""
    rest = 1 - _MIDDLING
    hard = (_EASY * rest + _MIDDLE * _MIDDLING - acceptance) / (_EASY - _HARD)
    if not 0 <= hard <= rest:
        return [acceptance], [1.0]
    return [_EASY, _MIDDLE, _HARD], [rest - hard, _MIDDLING, hard]
