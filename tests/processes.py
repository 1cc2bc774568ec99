"""Looking at processes, and waiting for what they do."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path


def command(pid: int) -> list[str]:
    """Command line of a process; empty if it is gone, or nobody has asked yet how it ended."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return []
    return line.split("\0") if line else []


def children(pid: int) -> list[int]:
    """Living children of a process."""
    try:
        pids = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [child for child in pids if command(child)]


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def wait_until(condition: Callable[[], bool], seconds: float) -> float:
    """Polls; returns the seconds it took, fails after `seconds`."""
    started = time.monotonic()
    pause = threading.Event()
    while not condition():
        assert time.monotonic() - started < seconds, "timed out"
        pause.wait(0.02)
    return time.monotonic() - started
