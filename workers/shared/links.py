"""Messages between two processes of one host: a connected Unix socket, without threads, one system call a message.

`SOCK_SEQPACKET` keeps messages whole and in order, and tells at once that the other process has gone. A message larger
than the kernel takes in one piece travels as a file in memory, of which only the descriptor is sent.
"""

import mmap
import os
import select
import socket
import struct
import sys
import time
from collections import deque

from workers.shared.endpoints import socket_path
from workers.shared.errors import PeerLost

Buffer = bytes | bytearray | memoryview

INLINE = 64 * 1024  # bytes; a larger message goes as a file
_HUNG_UP = select.POLLHUP | select.POLLERR
_BACKLOG = 16
_RETRY_SECONDS = 0.02  # between two attempts to reach a process that does not listen yet
_FILE = b"f"  # what goes with a descriptor
_LIMIT = struct.Struct("@ll")  # timeval: seconds, microseconds
_ONE_DESCRIPTOR = socket.CMSG_LEN(4)
_AT_ONCE = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class Link:
    """One end of a connection. Sending never waits: what the kernel does not take is kept and goes first later."""

    def __init__(self, connected: socket.socket, peer: str) -> None:
        """`peer` is who is at the other end, for error messages."""
        self._socket = connected
        self._peer = peer
        self.memory = bytearray(INLINE)  # where messages are received, but for those that come as files
        self._view = memoryview(self.memory)
        self._kept: deque[bytes] = deque()
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(connected, select.POLLOUT)
        self._either = select.poll()
        self._either.register(connected, select.POLLIN | select.POLLOUT)

    def fileno(self) -> int:
        """For pollers: readable when a message has arrived or the peer has gone."""
        return self._socket.fileno()

    @property
    def ended(self) -> bool:
        """Whether the peer has gone; a last message of it may still be there to be received."""
        return any(events & _HUNG_UP for _, events in self._readable.poll(0))

    @property
    def kept(self) -> bool:
        """Whether messages wait for room in the kernel; `flush` sends them once the socket is writable."""
        return bool(self._kept)

    def send(self, message: Buffer) -> None:
        """Sends a message of one byte or more, behind all earlier ones; it may be reused. Raises `PeerLost`."""
        if self._kept or not self._try(message):
            self._kept.append(bytes(message))
            self.flush()

    def flush(self) -> None:
        """Sends what was kept, as far as the kernel takes it; raises `PeerLost`."""
        while self._kept and self._try(self._kept[0]):
            self._kept.popleft()

    def drain(self, seconds: float) -> None:
        """Waits until nothing is kept; raises `PeerLost` where the peer takes nothing for so long."""
        while self._kept:
            if not self._writable.poll(seconds * 1000):
                raise PeerLost(f"{self._peer} has taken nothing for {seconds:g} s")
            self.flush()

    def wait(self, seconds: float | None) -> bool:
        """Whether a message, or the peer's end, arrives within `seconds`; None waits for ever.

        What is kept is sent meanwhile. Raises `PeerLost`.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._kept:
            events = self._either.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000)
            if not events or events[0][1] & ~select.POLLOUT:
                return bool(events)
            self.flush()
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return bool(self._readable.poll(None if left is None else left * 1000))

    def limit(self, seconds: float) -> None:
        """How long `take` waits."""
        whole = int(seconds)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LIMIT.pack(whole, int((seconds - whole) * 1e6)))

    def receive(self) -> memoryview | None:
        """The next message, valid until the next call; None where none has arrived. Raises `PeerLost`."""
        return self.take(socket.MSG_DONTWAIT)

    def take(self, flags: int = 0) -> memoryview | None:
        """The next message, valid until the next call; None where none arrives within the `limit`, if there is one.

        Waits in the call that receives: one system call, and nothing else between the message and its reader. Raises
        `PeerLost`.
        """
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into((self.memory,), _ONE_DESCRIPTOR, flags)
        except BlockingIOError:
            return None
        except OSError as error:
            raise PeerLost(f"{self._peer} has gone: {error.strerror}") from error
        if size == 0:
            raise PeerLost(f"{self._peer} has gone")
        return _contents(ancillary[0][2]) if ancillary else self._view[:size]

    def close(self) -> None:
        """Ends the connection; what is kept is lost."""
        self._socket.close()

    def _try(self, message: Buffer) -> bool:
        try:
            if len(message) <= INLINE:
                self._socket.send(message, _AT_ONCE)
            else:
                self._send_file(message)
        except BlockingIOError:
            return False
        except OSError as error:
            raise PeerLost(f"{self._peer} has gone: {error.strerror}") from error
        return True

    def _send_file(self, message: Buffer) -> None:
        descriptor = os.memfd_create("message")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(message)
            socket.send_fds(self._socket, [_FILE], [descriptor], _AT_ONCE)
        finally:
            os.close(descriptor)


def _contents(descriptor: bytes) -> memoryview:
    number = int.from_bytes(descriptor, sys.byteorder)
    try:
        return memoryview(mmap.mmap(number, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
    finally:
        os.close(number)


class Listener:
    """Where one process waits for others to connect. The file is its owner's alone."""

    def __init__(self, endpoint: str, peer: str) -> None:
        """Raises `OSError` where the address cannot be bound."""
        self._path = socket_path(endpoint)
        self._peer = peer
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._path.unlink(missing_ok=True)
        self._socket.bind(str(self._path))
        self._path.chmod(0o600)
        self._socket.listen(_BACKLOG)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    def fileno(self) -> int:
        """For pollers: readable when somebody wants to connect."""
        return self._socket.fileno()

    def accept(self, seconds: float = 0.0) -> Link | None:
        """A process that has connected within `seconds`."""
        if not self._readable.poll(seconds * 1000):
            return None
        return Link(self._socket.accept()[0], self._peer)

    def close(self) -> None:
        """Nobody else may connect."""
        self._socket.close()
        self._path.unlink(missing_ok=True)


def connect(endpoint: str, peer: str, seconds: float) -> Link:
    """Connects to a listener, which may start later; raises `PeerLost` where there is none within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connecting.connect(str(socket_path(endpoint)))
        except (FileNotFoundError, ConnectionRefusedError):
            connecting.close()
            if time.monotonic() >= deadline:
                raise PeerLost(f"{peer} does not listen at {endpoint} after {seconds:g} s") from None
            time.sleep(_RETRY_SECONDS)
        else:
            return Link(connecting, peer)
