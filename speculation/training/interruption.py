"""Ctrl-C and SIGTERM in a program that can go on later from what it has saved."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 3  # run the same command again to go on


class Interrupted(BaseException):
    """SIGINT or SIGTERM. Not an Exception, so that nothing on the way swallows it."""


class StopSignals:
    """Ends the program where it stands, or, inside `deferred`, only asks: the loop ends after its step, and saves.

    Calling it tells whether it was asked.
    """

    def __init__(self) -> None:
        self._deferred = False
        self._asked = False

    def install(self) -> None:
        """Listens for SIGTERM and SIGINT; also in a shell's background, where SIGINT is ignored."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """In here a signal only asks. (More of them change nothing: torchrun sends a second one after Ctrl-C.)"""
        self._deferred = True
        yield
        self._deferred = False

    def __call__(self) -> bool:
        return self._asked

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
        if not self._deferred:
            raise Interrupted
