"""Children of a fork server: what they need is imported once for all of them, and for those that follow."""

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from workers.shared.lifecycle import PARENT_VARIABLE
from workers.shared.processes.children import Child, spawn
from workers.shared.processes.fork_server import MOST_BYTES, READY

# For a fork server: what everything that loads a model begins with, and what stages do.
LOADING = "workers.model.loader:rehearse"
STAGES = ("workers.stage.launch", LOADING)

_PR_SET_CHILD_SUBREAPER = 36
_IMPORTS = 300.0  # seconds for the imports; then children do without
_ANSWER = 30.0  # seconds, which takes milliseconds


class Forked:
    """A child of this process that was not started by `subprocess`, with as much of `Popen` as we use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code as of `Popen`, or None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code once there is one; raises `subprocess.TimeoutExpired`."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                if not poll.poll(None if timeout is None else 1000 * timeout):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            finally:
                os.close(descriptor)
        code = self.poll()
        assert code is not None
        return code

    def terminate(self) -> None:
        """Asks it to leave."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:  # else its pid may be another's
            os.kill(self.pid, number)


def may_fork(devices: Iterable[str]) -> bool:
    """Whether copies of one process work: a CUDA device that somebody has looked at does not survive a fork."""
    return all(device == "cpu" for device in devices)


class ForkServer:
    """Starts children as `spawn` does, but as copies of one process that has imported `modules`, or called functions.

    That process is started by the first that is asked for, or by `prepare`. Where it is of no use or does not work,
    children are started as usual.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._server: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._imported = False
        self._given_up = not sys.platform.startswith("linux")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the process that is copied, where there is one."""
        return None if self._server is None else self._server.pid

    def prepare(self) -> None:
        """Begins with the imports, where that has not been done; returns at once."""
        if self._given_up or (self._server is not None and self._server.poll() is None):
            return
        self.close()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):  # so that this process waits for the children
            self._given_up = True
            return
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.settimeout(_ANSWER)
        with theirs:
            command = [sys.executable, "-m", "workers.shared.processes.fork_server", str(theirs.fileno())]
            variables = {PARENT_VARIABLE: str(os.getpid()), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
            self._server = subprocess.Popen(
                [*command, *self._modules, "-" * MOST_BYTES],
                env=os.environ | variables,
                process_group=0,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def ready(self) -> bool:
        """Whether the imports are done, so that the next child does not have to wait for them."""
        return self._await_imports(0.0)

    @property
    def importing(self) -> bool:
        """Whether a child that is started otherwise would only do once more what is being done here."""
        return not self.ready() and self._link is not None

    def spawn(self, name: str, *arguments: str, threads: int = 1) -> Child:
        """Starts what is `python -m arguments...`, once the imports are done.

        `threads` are what OpenMP is told where there is no copy; a copy has to say itself how many it wants.
        """
        self.prepare()
        pid = self._ask("\0".join(arguments).encode()) if self._await_imports(_IMPORTS) else None
        return spawn(name, *arguments, threads=threads) if pid is None else Child(name, Forked(pid))

    def close(self) -> None:
        """Ends the server, not its children."""
        if self._link is not None:
            self._link.close()
            self._link = None
        self._imported = False
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def _await_imports(self, seconds: float) -> bool:
        if self._link is not None and not self._imported and select.select([self._link], [], [], seconds)[0]:
            self._imported = self._receive() == READY
        return self._imported

    def _ask(self, request: bytes) -> int | None:
        """Pid of a copy, or None where there is none."""
        if self._link is None or len(request) > MOST_BYTES:
            return None
        with contextlib.suppress(OSError):  # of a server that has ended, which is found next
            self._link.send(request)
        answer = self._receive()
        return int(answer) if answer else None

    def _receive(self) -> bytes:
        """What the server says; where it has ended, there will be no copies any more."""
        assert self._link is not None
        try:
            answer = self._link.recv(32)
        except OSError:  # a timeout is one, too
            answer = b""
        if not answer:
            self._given_up = True
            self.close()
        return answer
