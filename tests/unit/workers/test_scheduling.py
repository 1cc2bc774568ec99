"""Punctuality is asked for in a way that this kernel understands."""

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, struct
from workers.shared.time_slices import be_punctual
be_punctual()
libc = ctypes.CDLL(None)
state = ctypes.create_string_buffer(56)
assert libc.syscall({number}, 0, state, 56, 0) == 0
print(struct.unpack("=IIQiIQQQ", state.raw[:48])[5], libc.prctl(30, 0, 0, 0, 0))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
@pytest.mark.parametrize("nice", [0, 5])
def test_slices_and_timers_are_short_and_niceness_is_kept(nice: int) -> None:
    import platform

    number = {"x86_64": 315, "aarch64": 275}.get(platform.machine())
    if number is None:
        pytest.skip("unknown system call number")
    script = f"import os; before = os.nice({nice})\n" + SCRIPT.format(number=number) + "\nassert os.nice(0) == before"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    slice_ns, slack_ns = map(int, done.stdout.split())
    if slice_ns == 0:
        pytest.skip("this kernel has no time slices of a task's own")
    assert slice_ns == 100_000
    assert slack_ns == 1_000
