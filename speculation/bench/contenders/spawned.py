"""A process that is measured, and its log."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from workers.shared.errors import ConfigError
from workers.shared.lifecycle import PARENT_VARIABLE
from workers.shared.options.sources import without_options

LOOK_SECONDS = 0.1
_READY_SECONDS = 600.0
_GRACE_SECONDS = 15.0


class Spawned:
    """A command in a process group of its own, so that Ctrl-C reaches only the bench."""

    def __init__(self, command: Sequence[str | Path], log: Path, *, pipes: bool = False) -> None:
        """With `pipes` its stdin and stdout are ours; everything else it says is in `log`."""
        self._log = log
        environment = without_options(os.environ) | {PARENT_VARIABLE: str(os.getpid())}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                env=environment,
                process_group=0,
            )

    @classmethod
    def python(cls, arguments: Sequence[str], log: Path, *, pipes: bool = False) -> "Spawned":
        """This Python with `arguments`."""
        return cls([sys.executable, *arguments], log, pipes=pipes)

    @property
    def pid(self) -> int:
        """Of the process itself, whose children others are."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self._process.poll() is not None

    def tell(self, line: bytes) -> None:
        """Writes a line; one that has ended does not mind."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `hear` says what has happened
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def hear(self) -> bytes:
        """The next line; empty where it has ended."""
        assert self._process.stdout is not None
        line: bytes = self._process.stdout.readline()
        return line

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def await_ready(self, name: str, look: Callable[[], None]) -> None:
        """Returns once `look` does not fail; raises `ConfigError` with the end of its log where it never will."""
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            with contextlib.suppress(OSError, ConfigError):
                look()
                return
            if self.ended:
                raise ConfigError(f"{name} did not start:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ConfigError(f"{name} was not ready after {_READY_SECONDS:g} s:\n{self.tail()}")
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Ends it, by force where it takes too long."""
        process = self._process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # of a question that nobody read
                    stream.close()
