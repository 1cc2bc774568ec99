"""SIGINT and SIGTERM as exceptions: the first asks to finish, the second to end at once."""

import contextlib
import signal
from collections.abc import Iterator

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """SIGINT or SIGTERM. Not an Exception, so that nothing on the way swallows it."""


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Raises `Stopped` inside for each signal."""

    def stop(*_: object) -> None:
        raise Stopped

    before = {number: signal.signal(number, stop) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """From now on nothing interrupts the clean-up."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)
