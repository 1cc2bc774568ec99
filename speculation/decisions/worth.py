"""How likely a draft is right, by what its drafter says of it and what has come of such sayings. Pure."""

from collections.abc import Iterable
from math import prod

_HOPE = 0.8  # acceptance of a request that has had no draft verified yet
_MEMORY = 0.9  # weight of the past


class Acceptance:
    """Of one request: how many drafts were right lately, and how many should have been by their drafter's words.

    A drafter that says too much, or too little, is believed in proportion.
    """

    def __init__(self) -> None:
        self._right = _HOPE
        self._said = _HOPE

    def verified(self, *, right: bool, confidence: float | None) -> None:
        """A draft is known to be right or wrong; `confidence` was what its drafter said, if anything."""
        said = self._right if confidence is None else confidence
        self._right = _MEMORY * self._right + (1 - _MEMORY) * right
        self._said = _MEMORY * self._said + (1 - _MEMORY) * said

    def worth(self, confidences: Iterable[float | None]) -> float:
        """The probability that drafts with these confidences, one behind the other, are all right."""
        return prod(map(self._probability, confidences))

    def _probability(self, confidence: float | None) -> float:
        if confidence is None or self._said == 0.0:
            return self._right
        return min(1.0, confidence * self._right / self._said)
