"""A link with latency that is made up: what is sent arrives later, and what is sent meanwhile does not wait for it."""

import queue
import threading
import time

from torch import Tensor

from workers.shared.frames import Frame
from workers.transport.base import Outbound


class DelayedOutbound:
    """Wraps an outbound edge: a thread hands each tensor on `latency_ms` after it was sent."""

    def __init__(self, outbound: Outbound, latency_ms: float) -> None:
        self._outbound = outbound
        self._latency_ns = int(latency_ms * 1e6)
        self._queue: queue.SimpleQueue[tuple[int, Frame, Tensor] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, name="link", daemon=True)
        self._thread.start()

    def send(self, frame: Frame, hidden: Tensor) -> None:
        """See `Outbound`."""
        due = time.perf_counter_ns() + self._latency_ns
        self._queue.put((due, frame, hidden.clone()))  # whose memory may be used again

    def close(self) -> None:
        """Delivers what is on its way; see `Outbound`."""
        self._queue.put(None)
        self._thread.join()
        self._outbound.close()

    def _deliver(self) -> None:
        while (sent := self._queue.get()) is not None:
            due, frame, hidden = sent
            if (left := due - time.perf_counter_ns()) > 0:
                time.sleep(left * 1e-9)
            self._outbound.send(frame, hidden)
