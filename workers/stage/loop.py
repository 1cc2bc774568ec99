"""The loop of one stage: hear, receive, compute, send.

Decisions are in `workers.decisions.lookahead`, arithmetic in `workers.model.shard` and `workers.sampling.sampler`;
this is the shell around them.
"""

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import torch
import zmq
from torch import Tensor

from workers.decisions.lookahead import Lookahead
from workers.shared.bus import encode
from workers.shared.connection import ConnectionWatch
from workers.shared.errors import PeerLost
from workers.shared.frames import Frame
from workers.shared.messages import FromStage, Observe, Open, Ping, Pong, Sample, Shutdown, StageTimings, Tap, ToStage
from workers.stage.parts import StageParts


class ControlChannel:
    """A stage's end of the control and results channels."""

    def __init__(self, control: "zmq.Socket[Any]", results: "zmq.Socket[Any]", silence: float) -> None:
        self._control = control
        self._results = results
        self._silence_ms = int(silence * 1000)
        self._limit_ms: int | None = None  # rank 0 says nothing until all stages are ready, however long they load
        self._watch = ConnectionWatch(control)
        self._orphaned = False
        self._poller = zmq.Poller()
        self._poller.register(control, zmq.POLLIN)
        self._poller.register(self._watch.events, zmq.POLLIN)
        self._decoder = msgspec.msgpack.Decoder(ToStage)

    @property
    def orphaned(self) -> bool:
        """Whether the rank 0 that this stage belongs to has gone; another one may already listen at its address."""
        self._orphaned = self._orphaned or self._watch.lost()
        return self._orphaned

    def heard(self, *, wait: bool) -> Iterator[ToStage]:
        """Everything that has arrived; waits for the first message if asked to.

        Raises `PeerLost` where rank 0 has gone, or after too long a silence: rank 0 pings every second.
        """
        if wait and not self._poller.poll(self._limit_ms):
            raise PeerLost(f"nothing heard of rank 0 for {self._silence_ms / 1000:g} s")
        heard = False
        while True:
            try:
                message = self._control.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            heard = True
            yield self._decoder.decode(message)
        if heard:
            self._limit_ms = self._silence_ms
        elif wait and self.orphaned:
            raise PeerLost("rank 0 has gone")

    def report(self, message: FromStage) -> None:
        """Sends to rank 0."""
        self._results.send(encode(message))

    def close(self) -> None:
        """Closes the control channel; the results channel may still have something to deliver."""
        self._watch.close()
        self._control.close()


class Stage:
    """One stage of the pipeline."""

    def __init__(self, index: int, parts: StageParts, timings: StageTimings) -> None:
        """Counts what it does in `timings`."""
        self.index = index
        self.timings = timings
        self._layers = parts.layers
        self._channel = parts.channel
        self._inbound = parts.inbound
        self._outbound = parts.outbound
        self._tail = parts.tail
        self._lookahead = Lookahead(f"stage {index}")
        self._leaving = False

    def run(self) -> None:
        """Works until told to shut down. Every announced frame crosses to the next stage, computed or not."""
        clock, timings = time.perf_counter_ns, self.timings
        mark = clock()
        while True:
            while (frame := self._lookahead.pop()) is None:
                if self._leaving:
                    return
                self._listen(wait=True)
                mark, timings.idle_ns = (now := clock()), timings.idle_ns + now - mark
            hidden = self._inbound.receive(frame) if self._inbound is not None else None
            mark, timings.receive_ns = (now := clock()), timings.receive_ns + now - mark
            self._listen(wait=False)
            mark = self._work(frame, hidden, mark)

    def _work(self, frame: Frame, hidden: Tensor | None, started: int) -> int:
        """Computes a live frame and passes it on, dead or alive; returns the time it was done."""
        clock, timings = time.perf_counter_ns, self.timings
        alive = self._lookahead.admit(frame)
        sample: Sample | None = None
        taps: list[Tensor] = []
        mark = started
        if alive:
            hidden = self._layers.forward(frame.sequence, frame.position, frame.tokens, hidden, taps)
            mark, timings.forward_ns = (now := clock()), timings.forward_ns + now - mark
            if self._tail is not None:
                sample = self._tail.finish(frame, hidden)
                mark, timings.sample_ns = (now := clock()), timings.sample_ns + now - mark
            timings.frames += 1
            timings.tokens += len(frame.tokens)
        else:
            timings.skipped += 1
        if self._outbound is not None:
            self._outbound.send(frame, hidden if hidden is not None else self._blank(frame))
        elif sample is not None:
            if sample.tokens:
                self._lookahead.sampled(frame, sample)
            self._channel.report(sample)
        if taps:  # after what the next stage, or rank 0, waits for
            self._channel.report(_tap(self.index, frame, taps))
        timings.send_ns += (now := clock()) - mark
        return now

    def _blank(self, frame: Frame) -> Tensor:
        """What the first stage sends for a dead frame: the shape that was announced, contents of no consequence."""
        layers = self._layers
        return torch.empty(len(frame.tokens), layers.hidden_size, dtype=layers.dtype, device=layers.device)

    def _listen(self, *, wait: bool) -> None:
        for message in self._channel.heard(wait=wait):
            if isinstance(message, Ping):
                self._channel.report(Pong(message.number, self.index, self.timings))
            elif isinstance(message, Observe):
                self._layers.observe(message.anchors)
            elif isinstance(message, Shutdown):
                self._leaving = True
            else:
                if isinstance(message, Open) and self._tail is not None:
                    self._tail.open(message)
                self._lookahead.hear(message)


def _tap(stage: int, frame: Frame, states: list[Tensor]) -> Tap:
    """Packs the observed hidden states, each `[T, H]`, into one message."""
    packed = torch.stack(states, dim=1).cpu()
    data = packed.view(torch.uint8).numpy().tobytes()
    return Tap(stage, frame.sequence, frame.epoch, frame.position, str(packed.dtype).removeprefix("torch."), data)
