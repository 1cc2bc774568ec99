"""Processor time of the processes of a served group, by role. It hardly depends on what else the machine does."""

from collections.abc import Mapping
from pathlib import Path

import psutil

ROLES = ("stage", "last stage", "rank 0", "API")
_MODULES = {"speculation": "rank 0", "server": "API"}


class ProcessorTime:
    """Of all processes under one launcher, which has started them all."""

    def __init__(self, launcher: int, stages: int) -> None:
        """`launcher` is a process id."""
        self._roles = {}
        for process in psutil.Process(launcher).children(recursive=True):
            if (role := role_of(process.cmdline(), stages)) is not None:
                self._roles[process.pid] = role

    def seconds(self) -> dict[str, float]:
        """Spent so far; of `stage` the mean over all but the last. Without those that the system does not tell."""
        spent: dict[str, list[float]] = {}
        for pid, role in self._roles.items():
            if (used := process_seconds(pid)) is not None:
                spent.setdefault(role, []).append(used)
        return {role: sum(values) / len(values) for role, values in spent.items()}


def role_of(command: list[str], stages: int) -> str | None:
    """What the process with this command line is in an engine of so many stages; None: nothing of it."""
    if "-m" not in command[:-1]:
        return None
    module = command[command.index("-m") + 1]
    if module == "workers" and "--stage" in command:
        return "last stage" if command[command.index("--stage") + 1] == str(stages - 1) else "stage"
    return _MODULES.get(module)


def per_token(before: Mapping[str, float], after: Mapping[str, float], tokens: int) -> dict[str, float]:
    """Milliseconds a token, by role."""
    return {role: 1000 * (after[role] - before[role]) / tokens for role in ROLES if role in before and role in after}


def process_seconds(pid: int) -> float | None:
    """Of all threads of a process; None where the system does not tell.

    To the nanosecond: what /proc/PID/stat counts in ticks of 10 ms would be a tenth of a run.
    """
    try:
        threads = [path.read_text().split()[0] for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except OSError:
        return None
    return sum(map(int, threads)) * 1e-9 if threads else None
