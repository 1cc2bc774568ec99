"""How likely a draft is right, by what its drafter says of it and what has come of such sayings. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from math import log, prod

from speculation.decisions.drafts.tree import Draft, Node, Shoot

_HOPE = 0.8  # acceptance of a request that has had no draft verified yet
_MEMORY = 0.9  # weight of the past
_LEAST = 1e-9  # probability of a candidate that its drafter takes for impossible


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

    def best(self, found: Sequence[tuple[Node, Draft]], count: int) -> list[Shoot]:
        """At most `count` candidates behind some nodes that are not there yet, those first that are likeliest."""
        if count == 1 and len(found) == 1 and not found[0][0].children:
            leaf, draft = found[0]
            return [Shoot(leaf, draft.token, leaf.score, draft.confidence)]
        shoots = [shoot for leaf, draft in found for shoot in self._shoots(leaf, draft, count)]
        return nlargest(count, shoots, key=lambda shoot: shoot.score)

    def _shoots(self, leaf: Node, draft: Draft, count: int) -> Iterator[Shoot]:
        """Behind one leaf. Where no chances are given, each candidate has the first one's share of what is left."""
        first = self._probability(draft.confidence)
        here = {child.token for child in leaf.children}
        for rank, token in enumerate(draft.candidates[: count + len(here)]):
            if token in here:
                continue
            chance = draft.chances[rank] if draft.chances else first * (1 - first) ** rank
            confidence = draft.confidence if rank == 0 else chance
            yield Shoot(leaf, token, leaf.score + log(max(chance, _LEAST)), confidence)

    def _probability(self, confidence: float | None) -> float:
        if confidence is None or self._said == 0.0:
            return self._right
        return min(1.0, confidence * self._right / self._said)
