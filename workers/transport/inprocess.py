"""Hidden states handed over inside one process: for tests, and for several stages on one device."""

import queue

import torch
from torch import Tensor

from workers.shared.errors import OutOfStep, PeerLost
from workers.shared.frames import Frame


class InProcessEdge:
    """Both ends of an edge between two threads. Tensors are passed by reference.

    On CUDA an event travels with the tensor: the receiving thread's stream waits for it, the host does not.
    """

    def __init__(self, receiver: int, timeout: float) -> None:
        self._receiver = receiver
        self._timeout = timeout
        self._queue: queue.SimpleQueue[tuple[Frame, Tensor, torch.cuda.Event | None] | None] = queue.SimpleQueue()

    def send(self, frame: Frame, hidden: Tensor) -> None:
        """See `Outbound`."""
        event = None
        if hidden.is_cuda:
            event = torch.cuda.Event()
            event.record()
        self._queue.put((frame, hidden, event))

    def receive(self, frame: Frame) -> Tensor:
        """See `Inbound`."""
        try:
            item = self._queue.get(timeout=self._timeout)
        except queue.Empty:
            item = None
        if item is None:
            raise PeerLost(f"stage {self._receiver} got nothing from stage {self._receiver - 1} for {frame}")
        sent, hidden, event = item
        if sent.index != frame.index:
            raise OutOfStep(f"stage {self._receiver} expected {frame}, stage {self._receiver - 1} sent {sent}")
        if event is not None:
            event.wait()
            hidden.record_stream(torch.cuda.current_stream())
        return hidden

    def close(self) -> None:
        """See `Inbound`."""
        self._queue.put(None)
