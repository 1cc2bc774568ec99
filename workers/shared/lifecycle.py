"""Processes that end together: nothing outlives its launcher."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "ECHELON_PARENT_PID"


def parent_variable() -> dict[str, str]:
    """The environment of a child that is to end with this process."""
    return os.environ | {PARENT_VARIABLE: str(os.getpid())}


def die_with_parent() -> None:
    """Asks Linux to kill this process when the launcher named in the environment dies; does nothing without one.

    Called before the slow imports, so that no moment is left in which a dead launcher leaves a process behind.
    """
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(f"the launcher (pid {parent}) is gone")
