"""The loop of one stage: hear, receive, compute, send.

Decisions are in `workers.decisions.lookahead`, arithmetic in `workers.model.shard` and `workers.sampling.sampler`;
this is the shell around them.
"""

import time

import msgspec
import torch
from torch import Tensor

from workers.decisions.lookahead import Lookahead
from workers.shared.frames import Frame
from workers.shared.live.messages import Passage, Report
from workers.shared.messages import (
    Compile,
    Compiled,
    Observe,
    Open,
    Ping,
    Pong,
    Rollback,
    Sample,
    StageTimings,
    Tap,
)
from workers.stage.parts import StageParts


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
        self._compiler = parts.compiler
        self._lookahead = Lookahead(f"stage {index}")
        self._leaving = False
        self._reporting = False

    @torch.inference_mode()
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
        if moves := self._lookahead.moves(frame):
            self._layers.move(frame.sequence, moves)
        alive = self._lookahead.admit(frame)
        sample: Sample | None = None
        taps: list[Tensor] = []
        mark = started
        if alive:
            hidden = self._layers.forward(frame.sequence, frame.position, frame.tokens, hidden, taps, frame.branches)
            mark, timings.forward_ns = (now := clock()), timings.forward_ns + now - mark
            if self._tail is not None:
                sample = self._tail.finish(frame, hidden, self._lookahead.first)
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
            if taps:  # one message wakes rank 0 once
                sample = msgspec.structs.replace(sample, tap=_tap(self.index, frame, taps))
            self._channel.report(sample)
        if taps and self._outbound is not None:  # after what the next stage waits for
            self._channel.report(_tap(self.index, frame, taps))
        mark, timings.send_ns = (now := clock()), timings.send_ns + now - mark
        if self._reporting:
            self._channel.report(Passage(self.index, frame.index, now, now - started, alive))
        if sample is not None and self._tail is not None:
            self._tail.prepare()
            mark, timings.sample_ns = (now := clock()), timings.sample_ns + now - mark
        return mark

    def _open(self, message: Open) -> None:
        """A request takes a slot over. What it begins with went through this stage before rank 0 knew of it."""
        self._layers.release(message.sequence, message.reused if message.source is None else 0)
        if message.source is not None:
            self._layers.copy(message.source, message.sequence, message.reused)
        if self._tail is not None:
            self._tail.open(message)

    def _blank(self, frame: Frame) -> Tensor:
        """What the first stage sends for a dead frame: the shape that was announced, contents of no consequence."""
        layers = self._layers
        return torch.empty(len(frame.tokens), layers.hidden_size, dtype=layers.dtype, device=layers.device)

    def _listen(self, *, wait: bool) -> None:
        for message in self._channel.heard(wait=wait):
            if isinstance(message, Frame):
                self._lookahead.hear(message)
            elif isinstance(message, Rollback):
                self._layers.release(message.sequence, message.kept)
                self._lookahead.hear(message)
            elif isinstance(message, Open):
                self._open(message)
                self._lookahead.hear(message)
            elif isinstance(message, Ping):
                self._channel.report(Pong(message.number, self.index, self.timings))
            elif isinstance(message, Observe):
                self._layers.observe(message.anchors)
            elif isinstance(message, Report):
                self._reporting = message.wanted
            elif isinstance(message, Compile):
                if self._compiler is not None:
                    self._compiler.compile(message)
            else:
                self._leaving = True
        if self._compiler is not None:
            for number in self._compiler.finished():
                self._channel.report(Compiled(self.index, number))


def _tap(stage: int, frame: Frame, states: list[Tensor]) -> Tap:
    """Packs the observed hidden states, each `[T, H]`, into one message."""
    packed = torch.stack(states, dim=1).cpu()
    data = packed.view(torch.uint8).numpy().tobytes()
    dtype = str(packed.dtype).removeprefix("torch.")
    return Tap(stage, frame.sequence, frame.epoch, frame.position, dtype, data, frame.index)
