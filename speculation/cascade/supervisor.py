"""Starts a process for each model of a cascade, and starts again what ends. The engine goes on meanwhile."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from speculation.decisions.cascade.backoff import Backoff
from workers.shared.processes.children import Child
from workers.shared.processes.logs import tell

_GRACE = 3.0  # seconds to leave in
_PERMANENT = 2  # exit code of a process that a restart would not mend
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


@dataclass
class _Place:
    """One model's process, or the time of its next one."""

    start: Callable[[], Child]
    child: Child | None = None
    due: float = 0.0  # monotonic seconds
    started: float = 0.0
    starts: int = 0
    backoff: Backoff = field(default_factory=Backoff)


def supervise(starters: Sequence[Callable[[], Child]]) -> int:
    """Runs what `starters` start until told to stop, or until one of them was told to leave; returns an exit code.

    One that cannot work at all, and says so when it is first started, ends them all.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # waited for instead
    places = [_Place(start) for start in starters]
    try:
        while True:
            now = time.monotonic()
            for place in places:
                if place.child is None and place.due <= now:
                    place.child, place.started = place.start(), now
                    place.starts += 1
            due = min((place.due for place in places if place.child is None), default=None)
            heard = _await(None if due is None else max(0.0, due - time.monotonic()))
            if heard in (signal.SIGTERM, signal.SIGINT):
                return 0
            for place in places:
                if (code := _ended(place)) is not None:
                    return code
    finally:
        for place in places:
            if place.child is not None:
                place.child.process.terminate()
        for place in places:
            if place.child is not None:
                place.child.end(_GRACE)


def _await(seconds: float | None) -> int | None:
    """The next signal; None after so many seconds, or where it concerns nobody."""
    if seconds is None:
        return signal.sigwaitinfo(_SIGNALS).si_signo
    information = signal.sigtimedwait(_SIGNALS, seconds)
    return None if information is None else information.si_signo


def _ended(place: _Place) -> int | None:
    """Notes a process that has ended; an exit code where all end with it."""
    child = place.child
    if child is None or (code := child.process.poll()) is None:
        return None
    place.child = None
    if code == os.EX_OK or (code == _PERMANENT and place.starts == 1):
        return code
    now = time.monotonic()
    pause = place.backoff.after(now - place.started)
    place.due = now + pause
    tell(f"cascade: {child.exit_text}; restarting it in {pause:g} s")
    return None
