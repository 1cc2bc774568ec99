"""Work on a device that is put together once and then repeated as it is: CUDA graphs.

A frame of one token is hundreds of small kernels, and starting each of them takes the host longer than the device
takes for it. A graph starts all of them at once.
"""

import threading
from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], None]

_WARM_UP = 2  # runs in which libraries choose kernels and take memory, before anything is recorded


class Recorder(Protocol):
    """Makes work repeatable."""

    def record(self, work: Work) -> Work:
        """What does the same as `work`, which reads and writes tensors that stay where they are.

        `work` is run some times meanwhile. It must not wait for the device.
        """
        ...


class CudaGraphs:
    """Records the kernels that work starts. The graphs share their memory, so only one of them may run at a time."""

    def __init__(self, device: torch.device, lock: threading.Lock) -> None:
        """`lock` is one for all that record in this process: a graph may only be recorded while no other one is."""
        self._device = device
        self._lock = lock
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Work) -> Work:
        """See `Recorder`. Raises `RuntimeError` where the device cannot record what `work` does."""
        with self._lock, torch.cuda.device(self._device):
            beside = torch.cuda.Stream(self._device)
            beside.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(beside):
                for _ in range(_WARM_UP):
                    work()
            torch.cuda.current_stream(self._device).wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            # Other threads, with other stages, go on allocating and copying meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
        return graph.replay
