"""Which stages have not come yet, and what is said about it; no sockets, no clock."""

from collections.abc import Sequence

from workers.decisions.reminder import Reminder
from workers.shared.errors import PeerLost
from workers.shared.progress import shown_bytes

_FIRST = 8.0  # seconds after which missing stages are named, then after twice as long each time
_LONGEST = 60.0  # seconds between two reminders


class RollCall:
    """Stages come, and may go again, until all are there."""

    def __init__(self, addresses: Sequence[str], limit: float, now: float) -> None:
        """Stage i is expected at the control channel `addresses[i]`.

        The limit is `limit` seconds from `now` on, or from when a missing stage was last heard to be loading.
        """
        self.missing = set(range(len(addresses)))
        self._addresses = addresses
        self._limit = limit
        self._began = now
        self._loading: dict[int, tuple[float, str]] = {}  # when a stage was last heard of, and how far it was
        self._reminder = Reminder(_FIRST, now, _LONGEST)

    def heard(self, stage: int, done: int, total: int, now: float) -> None:
        """`stage` has loaded `done` of `total` bytes."""
        self._loading[stage] = now, f"{shown_bytes(done)} of {shown_bytes(total)}"

    def look(self, now: float) -> str | None:
        """What to tell the operator at `now`, if anything; raises `PeerLost` once the limit has passed."""
        if not self.missing:
            return None
        heard = max((self._loading[stage][0] for stage in self.missing & self._loading.keys()), default=self._began)
        if now - heard > self._limit:
            raise PeerLost(f"{self._who(now)} after --ready-timeout {self._limit:g} s")
        if not self._reminder.due(now):
            return None
        return f"{self._who(now)} after {now - self._began:.0f} s of --ready-timeout {self._limit:g}"

    def _who(self, now: float) -> str:
        return "not ready: " + ", ".join(f"stage {stage}, {self._state(stage, now)}" for stage in sorted(self.missing))

    def _state(self, stage: int, now: float) -> str:
        if stage not in self._loading:
            return f"expected at {self._addresses[stage]}"
        heard, loaded = self._loading[stage]
        return f"which had loaded {loaded} when it was last heard of, {now - heard:.0f} s ago,"
