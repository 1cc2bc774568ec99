"""Rates between consecutive `Status` messages, which carry cumulative counters only."""

from collections.abc import Sequence

from workers.shared.messages import StageTimings, Status

_NS = 1e9


class EngineFigures:
    """The newest `Status` of one engine, and what changed since the one before.

    Cycle figures keep the last interval in which the pipeline was full, as most scrapes happen between requests.
    """

    def __init__(self) -> None:
        self.status: Status | None = None
        self.busy_ratio: list[float] = []  # a stage: share of the last interval spent on frames
        self.cycle_seconds: float | None = None  # mean full cycle
        self.fixed_cost_seconds: float | None = None  # mean full cycle minus the slowest stage's busy time a frame

    def update(self, status: Status) -> None:
        """Takes the next status of the same engine."""
        previous = self.status
        self.status = status
        if previous is None or len(previous.stages) != len(status.stages):
            self.busy_ratio = [0.0] * len(status.stages)
            return
        self.busy_ratio = [
            _ratio(new.busy_ns - old.busy_ns, new.total_ns - old.total_ns)
            for old, new in zip(previous.stages, status.stages, strict=True)
        ]
        cycles = status.stats.full_cycles - previous.stats.full_cycles
        if cycles > 0:
            cycle_ns = (status.stats.full_cycle_ns - previous.stats.full_cycle_ns) / cycles
            self.cycle_seconds = cycle_ns / _NS
            self.fixed_cost_seconds = (cycle_ns - _slowest_frame_ns(previous.stages, status.stages)) / _NS


def _slowest_frame_ns(before: Sequence[StageTimings], after: Sequence[StageTimings]) -> float:
    return max(
        (_ratio(new.busy_ns - old.busy_ns, new.frames - old.frames) for old, new in zip(before, after, strict=True)),
        default=0.0,
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 0.0
