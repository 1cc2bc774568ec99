"""Which hidden states of a slot have been tapped, stage by stage, and which taps are of no use. No torch.

Taps of one stage come in the order of its frames, those of different stages in any order. A frame may turn out to hold
drafts that are wrong before or after its taps arrive; either way its rows from the first wrong one on do not count.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate


def columns_of_stages(anchors: Sequence[int], split: Sequence[int]) -> dict[int, list[int]]:
    """The stages that have any of the ascending hidden-state indices `anchors`, each with the places of its own.

    Index k is behind decoder layer k - 1; 0, the embedding, is no stage's.
    """
    ends = [0, *accumulate(split)]
    owned = {
        stage: [place for place, anchor in enumerate(anchors) if ends[stage] < anchor <= ends[stage + 1]]
        for stage in range(len(split))
    }
    return {stage: places for stage, places in owned.items() if places}


class TapLedger:
    """What is held of one slot's text: from each stage, the positions before `filled`."""

    def __init__(self, capacity: int, stages: Iterable[int]) -> None:
        """There is room for `capacity` positions; only `stages` send anything."""
        self._capacity = capacity
        self._filled = dict.fromkeys(stages, 0)
        self._origins = [(0, 0)]  # epochs of this request, each with its first position
        self._deaf = False

    def begin(self, epoch: int, kept: int) -> None:
        """A request starts with `epoch`; of what is held the first `kept` positions are still true."""
        self._keep(kept)
        self._origins = [(epoch, 0)]
        self._deaf = False

    def copy(self, other: "TapLedger") -> None:
        """Holds what `other`, of the same stages, holds; a `begin` follows."""
        self._filled = dict(other._filled)

    def rejected(self, position: int, epoch: int) -> None:
        """The draft at `position` was wrong: from there on only frames of `epoch`, or of a newer one, count."""
        self._origins.append((epoch, position))
        self._keep(position)

    def deafen(self) -> None:
        """Nothing is kept from here on, until the next request."""
        self._deaf = True

    @property
    def deaf(self) -> bool:
        """Whether nothing is kept any more."""
        return self._deaf

    @property
    def origin(self) -> int:
        """First position of the newest epoch."""
        return self._origins[-1][1]

    def place(self, stage: int, epoch: int, position: int, rows: int) -> int:
        """How many of a tap's `rows`, from the first, are to be kept at `position`; they count as held from now on.

        None of those from which a rejection has cut the text off, nor of those behind others that were not sent.
        """
        stands = self._stands(epoch)
        if self._deaf or position >= stands or position > self._filled[stage]:
            return 0
        self._filled[stage] = min(position + rows, stands)
        return self._filled[stage] - position

    def filled(self, stages: Iterable[int] | None = None) -> int:
        """Positions, from 0, that all of `stages` have sent; those of all stages by default."""
        held = self._filled.values() if stages is None else [self._filled[stage] for stage in stages]
        return min(held, default=self._capacity)

    def _stands(self, epoch: int) -> int:
        """Position from which a frame is dead: where a later epoch began, and 0 for what is of earlier requests."""
        stands = self._capacity
        for later, position in reversed(self._origins):  # taps are late by an epoch or two, seldom more
            if later <= epoch:
                return stands
            stands = min(stands, position)
        return 0

    def _keep(self, positions: int) -> None:
        for stage, filled in self._filled.items():
            self._filled[stage] = min(filled, positions)
