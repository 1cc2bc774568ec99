"""Hidden states over Unix sockets: the default between CPU stages of one host."""

from torch import Tensor

from workers.shared.errors import OutOfStep, PeerLost
from workers.shared.frames import Frame
from workers.shared.links import Link, Listener, connect
from workers.transport.incoming import LOOK_SECONDS, Incoming, Outgoing


class UnixOutbound:
    """Sends each tensor behind its header."""

    def __init__(self, endpoint: str, key: int, stage: int, timeout: float) -> None:
        """Connects with the first tensor, when every stage is ready. The receiver may be busy for `timeout` seconds."""
        self._endpoint = endpoint
        self._outgoing = Outgoing(key)
        self._receiver = f"stage {stage + 1}"
        self._timeout = timeout
        self._link: Link | None = None

    def send(self, frame: Frame, hidden: Tensor) -> None:
        """See `Outbound`. Waits where the receiver is more frames behind than the kernel has room for."""
        if self._link is None:
            self._link = connect(self._endpoint, self._receiver, self._timeout)
        self._link.send(self._outgoing.message(frame, hidden))
        self._link.drain(self._timeout)

    def close(self) -> None:
        """See `Outbound`."""
        if self._link is not None:
            self._link.close()


class UnixInbound:
    """Takes tensors and checks that each belongs to the frame that was announced next."""

    def __init__(self, listener: Listener, incoming: Incoming) -> None:
        self._listener = listener
        self._incoming = incoming
        self._link: Link | None = None
        self._shared: dict[int, Tensor] = {}  # by rows: over the link's memory

    def receive(self, frame: Frame) -> Tensor:
        """See `Inbound`."""
        link = self._link or self._accept()
        while (message := link.take()) is None:
            self._incoming.wait(frame, link.wait)
        if not self._incoming.belongs(frame, message):
            stage = self._incoming.stage
            raise OutOfStep(f"stage {stage} got something else from stage {stage - 1} than tensors")
        rows = len(frame.tokens)
        if message.obj is not link.memory:
            return self._incoming.tensor(rows, message)
        if (tensor := self._shared.get(rows)) is None:
            tensor = self._shared[rows] = self._incoming.tensor(rows, memoryview(link.memory))
        return tensor

    def wait(self, seconds: float) -> bool:
        """Whether a tensor, or the sender's end, arrives within `seconds`."""
        return self._link is not None and self._link.wait(seconds)

    def close(self) -> None:
        """See `Inbound`."""
        self._listener.close()
        if self._link is not None:
            self._link.close()

    def _accept(self) -> Link:
        stage, timeout = self._incoming.stage, self._incoming.timeout
        link = self._listener.accept(timeout)
        if link is None:
            raise PeerLost(f"stage {stage - 1} has not come to stage {stage} in {timeout:g} s")
        link.limit(LOOK_SECONDS)
        self._link = link
        return link
