"""Hidden states over torch.distributed: NCCL between CUDA devices; gloo runs the same code on CPUs.

Every directed edge has a two-rank group of its own, so that edges never wait for each other.
"""

from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from workers.shared.errors import PeerLost
from workers.shared.frames import Frame


class DistributedEdges:
    """Membership of one stage in the process group, with its two edges. Rank = stage."""

    def __init__(self, backend: str, rendezvous: str, stage: int, stages: int, *, ready: float, timeout: float) -> None:
        """All stages must have come within `ready` seconds; what is received must then come within `timeout`."""
        together = timedelta(seconds=ready)
        dist.init_process_group(backend, init_method=rendezvous, rank=stage, world_size=stages, timeout=together)
        limit = timedelta(seconds=timeout)
        # Groups are collective: every rank creates every group, in the same order.
        groups = [dist.new_group([i, i + 1], timeout=limit) for i in range(stages - 1)]
        self.upstream = groups[stage - 1] if stage > 0 else None
        self.downstream = groups[stage] if stage < stages - 1 else None
        self.broken = False  # a transfer failed, or is still under way

    def leave(self) -> None:
        """Leaves the process group, unless it is `broken`: that could wait for ever for a peer that has gone.

        The process ends next, which nothing can delay.
        """
        if dist.is_initialized() and not self.broken:
            dist.destroy_process_group()


class DistributedOutbound:
    """Asynchronous sends to the next stage; a tensor is kept until its send is complete."""

    def __init__(self, edges: DistributedEdges, stage: int) -> None:
        self._edges = edges
        self._group = edges.downstream
        self._peer = stage + 1
        self._sending: deque[tuple[dist.Work, Tensor]] = deque()

    def send(self, frame: Frame, hidden: Tensor) -> None:
        """See `Outbound`."""
        while self._sending and self._sending[0][0].is_completed():
            self._sending.popleft()
        tensor = hidden.contiguous()
        work = dist.isend(tensor, self._peer, group=self._group)
        if work is not None:
            self._sending.append((work, tensor))

    def close(self) -> None:
        """See `Outbound`."""
        self._edges.broken |= any(not work.is_completed() for work, _ in self._sending)
        self._edges.leave()


class DistributedInbound:
    """Blocking receives from the previous stage, posted only for an announced frame, so an idle device is idle."""

    def __init__(
        self, edges: DistributedEdges, *, stage: int, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._edges = edges
        self._group = edges.upstream
        self._stage = stage
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._device = device

    def receive(self, frame: Frame) -> Tensor:
        """See `Inbound`."""
        hidden = torch.empty(len(frame.tokens), self._hidden_size, dtype=self._dtype, device=self._device)
        try:
            dist.recv(hidden, self._stage - 1, group=self._group)
            self._await(hidden)
        except RuntimeError as error:  # what torch.distributed raises for a lost or late peer
            self._edges.broken = True
            raise PeerLost(f"stage {self._stage} lost stage {self._stage - 1} at {frame}: {error}") from error
        return hidden

    @staticmethod
    def _await(hidden: Tensor) -> None:
        """NCCL returns once the transfer is in the device's queue. What is dead by the time it comes is not computed.

        So the host waits for what the device would wait for anyway: then it hears of rejections as late as it can, and
        a ping that it answers says that the stage before still sends.
        """
        if hidden.is_cuda:
            torch.cuda.current_stream(hidden.device).synchronize()

    def close(self) -> None:
        """See `Inbound`."""
        self._edges.leave()
