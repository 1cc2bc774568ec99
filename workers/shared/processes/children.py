"""Child processes that are started together and end together."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from workers.shared.lifecycle import PARENT_VARIABLE


class Process(Protocol):
    """What we use of `subprocess.Popen`."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """The exit code, negative of a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code once there is one; raises `subprocess.TimeoutExpired`."""

    def terminate(self) -> None:
        """Asks it to leave."""

    def kill(self) -> None:
        """Ends it."""


@dataclass(frozen=True)
class Child:
    """A running `python -m MODULE ...`."""

    name: str
    process: Process

    def end(self, grace: float) -> None:
        """Asks it to leave, and kills it where it is still there after `grace` seconds."""
        self.process.terminate()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def exit_text(self) -> str:
        """How it ended, for a message."""
        code = self.process.returncode
        if code is None:
            return f"{self.name} is running"
        if code < 0:
            return f"{self.name} was killed by {signal.Signals(-code).name}"
        return f"{self.name} left with exit code {code}"


class Spawn(Protocol):
    """Starts `python -m arguments...`, with so many threads for OpenMP."""

    def __call__(self, name: str, *arguments: str, threads: int = 1) -> Child: ...


def spawn(name: str, *arguments: str, threads: int = 1, variables: Mapping[str, str] | None = None) -> Child:
    """Starts `python -m arguments...`.

    The child is in a process group of its own, so that Ctrl-C reaches the launcher alone, and it dies with the launcher
    whatever kills that. OpenMP threads wait asleep, not spinning.
    """
    environment = (
        os.environ
        | (variables or {})
        | {
            PARENT_VARIABLE: str(os.getpid()),
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",
        }
    )
    command = [sys.executable, "-m", *arguments]
    return Child(name, subprocess.Popen(command, env=environment, process_group=0, stdin=subprocess.DEVNULL))


@dataclass
class Group:
    """Children that cannot live without each other."""

    children: list[Child] = field(default_factory=list)

    def ended(self) -> Child | None:
        """A child that has ended, if any."""
        return next((child for child in self.children if child.process.poll() is not None), None)

    def stop(self, grace: float) -> None:
        """Asks the first child to leave, which the others follow, and kills what is still there after `grace` seconds.

        Without a first one that lives, all are asked.
        """
        leading = self.children and self.children[0].process.poll() is None
        for child in self.children[: 1 if leading else None]:
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + grace
        for child in self.children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        self.children.clear()

    def stop_all(self, grace: float) -> None:
        """Asks all of them to leave, and kills what is still there after `grace` seconds."""
        for child in self.children[1:]:
            if child.process.poll() is None:
                child.process.terminate()
        self.stop(grace)


def wait_for_any_exit(groups: Sequence[Group]) -> None:
    """Sleeps until a child of `groups` has ended; a signal handler's exception gets through.

    Buries whoever else ends meanwhile: a process that lost its parent, or a fork server.
    """
    while not any(group.ended() for group in groups):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        ours = {child.process.pid for group in groups for child in group.children}
        if ended is not None and ended.si_pid not in ours:
            os.waitpid(ended.si_pid, os.WNOHANG)
