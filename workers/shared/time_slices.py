"""Processes and cores: where the former outnumber the latter, a message must not wait for long."""

import ctypes
import gc
import os
import platform
import struct
import sys

_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SLICE_NS = 100_000  # the shortest that Linux grants
_PR_SET_TIMERSLACK = 29
_TIMER_SLACK_NS = 1_000
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")
_SCHED_OTHER = 0


def be_punctual() -> None:
    """Short time slices and sharp timers for this process and the threads it starts from now on.

    With the usual slices of milliseconds, a stage that has a frame to forward waits until another stage's forward pass
    is over. Needs no privilege; Linux before 6.12, and other systems, keep their ways.
    """
    call = _SYS_SCHED_SETATTR.get(platform.machine())
    if call is None or not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, _SCHED_OTHER, 0, os.nice(0), 0, _SLICE_NS, 0, 0)
    libc.syscall(call, 0, ctypes.c_char_p(attributes), 0)
    libc.prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK_NS, 0, 0, 0)


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else os.cpu_count() or 1


def settle() -> None:
    """Called once everything is loaded: what is here stays, and the garbage collector need not look at it again.

    A full collection of what torch alone brings takes longer than many cycles. Until then a process does better without
    any (`gc.disable`): it takes a seventh of the time of its imports.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
