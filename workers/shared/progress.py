"""Progress on stderr for whatever takes longer than a second."""

import time
from types import TracebackType

from workers.shared.processes.logs import tell


class Progress:
    """A labelled task. Silent in its first second, then a line every two seconds; the end is told with its duration."""

    def __init__(self, label: str, unit: str = "") -> None:
        self._label = label
        self._unit = unit
        self._started = time.monotonic()
        self._told = self._started - 1.0

    def __enter__(self) -> "Progress":
        return self

    def update(self, done: int, total: int) -> None:
        """`done` of `total` units are behind us."""
        now = time.monotonic()
        if now - self._told >= 2.0:
            self._told = now
            share = f"{100 * done // total} %" if total else f"{done}"
            tell(f"{self._label}: {share} {self._unit}".rstrip())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.monotonic() - self._started
        if kind is None and seconds >= 1.0:
            tell(f"{self._label}: done in {seconds:.1f} s")
