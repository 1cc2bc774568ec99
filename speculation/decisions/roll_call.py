"""Which stages have not come yet, and what is said about it; no sockets, no clock."""

from collections.abc import Sequence

from workers.decisions.reminder import Reminder
from workers.shared.errors import PeerLost

_FIRST = 8.0  # seconds after which missing stages are named, then after twice as long each time
_LONGEST = 60.0  # seconds between two reminders


class RollCall:
    """Stages come, and may go again, until all are there."""

    def __init__(self, addresses: Sequence[str], limit: float, now: float) -> None:
        """Stage i is expected at the control channel `addresses[i]`, within `limit` seconds from `now` on."""
        self.missing = set(range(len(addresses)))
        self._addresses = addresses
        self._limit = limit
        self._began = now
        self._reminder = Reminder(_FIRST, now, _LONGEST)

    def look(self, now: float) -> str | None:
        """What to tell the operator at `now`, if anything; raises `PeerLost` once the limit has passed."""
        if not self.missing:
            return None
        waited = now - self._began
        if waited > self._limit:
            raise PeerLost(f"{self._who()} after --ready-timeout {self._limit:g} s")
        if not self._reminder.due(now):
            return None
        return f"{self._who()} after {waited:.0f} s of --ready-timeout {self._limit:g}"

    def _who(self) -> str:
        return "not ready: " + ", ".join(f"stage {i}, expected at {self._addresses[i]}" for i in sorted(self.missing))
