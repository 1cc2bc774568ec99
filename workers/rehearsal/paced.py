"""A stage that takes a given time for a frame: the rest of it is passed asleep."""

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from workers.shared.frames import Branches, Frame
from workers.shared.messages import Sample, StageTimings
from workers.stage.parts import Layers, SamplingHead


class Pace:
    """When the current frame is due."""

    def __init__(self, milliseconds: float, cost: Callable[[int], float] = lambda rows: 1.0) -> None:
        """A frame of several tokens takes `cost` times as long, given their number."""
        self._frame_ns = milliseconds * 1e6
        self._cost = cost
        self._due = 0

    def begin(self, rows: int) -> None:
        """A frame of so many tokens is begun."""
        self._due = time.perf_counter_ns() + int(self._frame_ns * self._cost(rows))

    def keep(self, timings: StageTimings) -> int:
        """Sleeps until the frame is due; returns the nanoseconds asleep, and adds them to what is emulated."""
        started = time.perf_counter_ns()
        if started >= self._due:
            return 0
        time.sleep((self._due - started) * 1e-9)
        asleep = time.perf_counter_ns() - started
        timings.emulate_ns += asleep
        return asleep


class PacedLayers:
    """Wraps a stage's layers; all but the last stage's, whose tail does, sleep before they hand on a frame."""

    def __init__(self, layers: Layers, pace: Pace, timings: StageTimings, *, sleeps: bool) -> None:
        self.hidden_size = layers.hidden_size
        self.dtype = layers.dtype
        self.device = layers.device
        self.weight_bytes = layers.weight_bytes
        self.kv_bytes = layers.kv_bytes
        self.observe = layers.observe
        self.copy = layers.copy
        self.release = layers.release
        self.move = layers.move
        self.logits = layers.logits
        self.row_logits = layers.row_logits
        self._layers = layers
        self._pace = pace
        self._timings = timings
        self._sleeps = sleeps

    def forward(
        self,
        sequence: int,
        position: int,
        tokens: Sequence[int],
        hidden: Tensor | None,
        taps: list[Tensor] | None = None,
        branches: Branches | None = None,
    ) -> Tensor:
        """See `Layers`."""
        self._pace.begin(len(tokens))
        result = self._layers.forward(sequence, position, tokens, hidden, taps, branches)
        if self._sleeps:
            self._timings.forward_ns -= self._pace.keep(self._timings)  # the stage takes it for the layers' time
        return result


class PacedTail:
    """Wraps a tail: a sample is there when the frame is due."""

    def __init__(self, tail: SamplingHead, pace: Pace, timings: StageTimings) -> None:
        self.open = tail.open
        self.prepare = tail.prepare
        self._tail = tail
        self._pace = pace
        self._timings = timings

    def finish(self, frame: Frame, hidden: Tensor, first: int | None = 0) -> Sample:
        """See `SamplingHead`."""
        sample = self._tail.finish(frame, hidden, first)
        self._timings.sample_ns -= self._pace.keep(self._timings)  # the stage takes it for the tail's time
        return sample
