"""Progress for whatever takes longer than a second: on stderr, and of a stage for rank 0."""

import time
from types import TracebackType

import msgspec

from workers.shared.frames import Natural
from workers.shared.processes.logs import tell


class Loading(msgspec.Struct, frozen=True, array_like=True, tag="loading"):
    """A stage goes on loading, told now and then: a slow one is not a hung one."""

    stage: Natural
    done: int  # tensors
    total: int


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
