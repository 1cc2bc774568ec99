"""Progress for whatever reads or writes for longer than a second: on stderr, and of a stage for rank 0."""

import time
from collections.abc import Callable
from types import TracebackType

import msgspec

from workers.shared.frames import Natural
from workers.shared.processes.logs import tell

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Loading(msgspec.Struct, frozen=True, array_like=True, tag="loading"):
    """A stage goes on loading, told now and then: a slow one is not a hung one."""

    stage: Natural
    done: int  # bytes
    total: int


def shown_bytes(count: float) -> str:
    """A number of bytes for people."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} bytes"


class Progress:
    """A labelled task of so many bytes, or of what `shown` makes of a number.

    Silent in its first second, then a line every two seconds; the end is told with its duration.
    """

    def __init__(
        self,
        label: str,
        clock: Callable[[], float] = time.monotonic,
        shown: Callable[[float], str] = shown_bytes,
    ) -> None:
        self._label = label
        self._shown = shown
        self._clock = clock
        self._started = clock()
        self._told = self._started - 1.0
        self._done = 0

    def __enter__(self) -> "Progress":
        return self

    def update(self, done: int, total: int) -> None:
        """`done` of `total` are behind us."""
        self._done, now = done, self._clock()
        if now - self._told >= 2.0 and done < total:
            self._told = now
            rate = done / (now - self._started)
            tell(f"{self._label}: {100 * done // total} % of {self._shown(total)}, {self._shown(rate)}/s")

    def finish(self) -> None:
        """All is done."""
        seconds = self._clock() - self._started
        if seconds >= 1.0:
            what = f", {self._shown(self._done)} at {self._shown(self._done / seconds)}/s" if self._done else ""
            tell(f"{self._label}: done in {seconds:.1f} s{what}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
