"""Where the recurrent states of a sequence are kept, and which of them are still true. No torch.

A layer with a state cannot read earlier positions again: a frame at position p needs the state behind p - 1, and leaves
the one behind its own last position. States are therefore entries of a ring by position, as many as there may be tokens
in flight; going back to p is reading the entry of p - 1, which nobody has overwritten yet. Beside the ring there are
snapshots behind whole prompt chunks, so that a later request can begin where an earlier prompt's chunk ended.
"""

from collections.abc import Sequence

from workers.shared.errors import OutOfStep

_NOTHING = -1


class StateEntries:
    """Entries of one slot: `ring` of them by position, then `snapshots` by prompt chunk."""

    def __init__(self, ring: int, snapshots: int, chunk: int) -> None:
        self._ring = ring
        self._snapshots = snapshots
        self._chunk = chunk
        self._behind = [_NOTHING] * (ring + snapshots)  # the position that each entry is the state behind

    @property
    def count(self) -> int:
        """How many states a slot holds of each layer."""
        return len(self._behind)

    def source(self, position: int) -> int | None:
        """The entry that a frame at `position` begins with; None at the beginning of a sequence.

        Raises `OutOfStep` where there is no state behind the position before.
        """
        if position == 0:
            return None
        wanted = position - 1
        for entry in self._entries(wanted):
            if self._behind[entry] == wanted:
                return entry
        raise OutOfStep(f"no state is kept behind position {wanted}; there are some behind {sorted(self._behind)}")

    def is_chunk(self, position: int, length: int) -> bool:
        """Whether a frame is a whole prompt chunk, behind which a snapshot is kept."""
        return length == self._chunk and position % self._chunk == 0

    def wrote(self, position: int, length: int, *, chunk: bool) -> Sequence[int]:
        """Notes that tokens were computed: the entry of the last position, then that of a snapshot behind a `chunk`.

        Whatever was behind its first position or later belongs to a text that is no more.
        """
        last = position + length - 1
        targets = self._entries(last) if chunk else self._entries(last)[:1]
        self._behind = [_NOTHING if behind >= position else behind for behind in self._behind]
        for entry in targets:
            self._behind[entry] = last
        return targets

    def _entries(self, behind: int) -> list[int]:
        """The ring's entry for the state behind a position and, at the end of a chunk, the snapshot's."""
        chunk, rest = divmod(behind + 1, self._chunk)
        ring = [behind % self._ring]
        return ring if rest or not self._snapshots else [*ring, self._ring + chunk % self._snapshots]


class Returns:
    """Rank 0's view of what a slot keeps of a prompt: the chunk ends that a new request may begin behind.

    Behind the newest ones there are snapshots of states, and windows that are still whole.
    """

    def __init__(self, chunk: int, snapshots: int | None) -> None:
        """So many chunk ends can be begun behind at a time; None for a model that can begin anywhere."""
        self._chunk = chunk
        self._snapshots = snapshots
        self._held: dict[int, int] = {}  # entry -> chunk end
        self._coming: dict[int, int] = {}  # the same, of the chunk announced last

    def announced(self, position: int, length: int) -> None:
        """A frame is on its way: if it is a whole chunk, it takes the place of an older snapshot."""
        if self._snapshots and length == self._chunk and position % self._chunk == 0:
            end = position + length
            entry = end // self._chunk % self._snapshots
            self._held.pop(entry, None)
            self._coming[entry] = end

    def computed(self, end: int) -> None:
        """The prompt's chunk that ends at `end` was computed by every stage; a later one may be under way already."""
        if self._snapshots and self._coming.get(entry := end // self._chunk % self._snapshots) == end:
            self._held[entry] = end

    def began(self, reused: int, *, copied: bool = False) -> None:
        """A request begins behind `reused` positions: what lay behind them is lost, and all if they are `copied`."""
        self._held = {} if copied else {entry: end for entry, end in self._held.items() if end <= reused}
        if copied and self._snapshots and reused:
            self._held[reused // self._chunk % self._snapshots] = reused

    def at_most(self, position: int) -> int:
        """The last chunk end up to `position` that can be begun behind; 0 for the beginning."""
        if self._snapshots is None:
            return position - position % self._chunk
        return max((end for end in self._held.values() if end <= position), default=0)
