"""Which decoder layers each stage holds.

Stages are balanced by bytes read per token, because that is what a single-token forward pass waits for; or, where
devices differ, by the time that was measured on each. The LM head counts as part of the last stage: for a small model
it weighs as much as many layers. So does the drafter as part of the stage whose device it shares.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import lcm
from typing import NamedTuple

import msgspec

from workers.shared.errors import ConfigError


class DeviceTimes(msgspec.Struct, frozen=True):
    """What one token takes on a device, in milliseconds."""

    layer_ms: float  # a layer of mean size
    head_ms: float  # final norm and LM head
    embed_ms: float
    draft_ms: float = 0.0  # a draft of the module, if there is one


class MeasuredSplit(NamedTuple):
    """A split, and what it costs."""

    split: tuple[int, ...]
    stage_ms: tuple[float, ...]  # a token, the module's draft included
    draft_stage: int | None  # whose device the draft module shares; None without a module


def balance(
    layer_bytes: Sequence[int], head_bytes: int, stages: int, speeds: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Layers a stage, in order, such that the stage that takes longest takes as little time as possible.

    Time is bytes read, by `speeds` where stages are not alike: whole numbers, one a stage, relative to each other.
    Every stage but the last has at least one layer; the last may hold the head alone. Raises `ConfigError` where there
    are fewer stages than 1 or more than layers + 1.
    """
    layers = len(layer_bytes)
    if stages < 1:
        raise ConfigError(f"--stages is {stages}; a pipeline needs at least 1")
    if stages > layers + 1:
        raise ConfigError(f"--stages is {stages}, but the model has only {layers} layers; use at most {layers + 1}")
    speeds = speeds or [1] * stages
    slowness = [lcm(*speeds) // speed for speed in speeds]  # in proportion to 1 / speed, and exact
    costs = [[size * slow for size in layer_bytes] for slow in slowness]
    return balance_costs(costs, [0] * (stages - 1) + [head_bytes * slowness[-1]])


def balance_by_time(layer_bytes: Sequence[int], devices: Sequence[DeviceTimes], *, module: bool) -> MeasuredSplit:
    """The same by time, given what was measured of each stage's device.

    A draft `module` shares the device of one stage, which then gets fewer layers: n devices, not n + 1. It is the stage
    for which the slowest one is fastest; the first of several.
    """
    mean = sum(layer_bytes) / len(layer_bytes)
    layers = [[times.layer_ms * size / mean for size in layer_bytes] for times in devices]
    ends = [0.0] * len(devices)
    ends[0] += devices[0].embed_ms
    ends[-1] += devices[-1].head_ms
    found = []
    for host in range(len(devices)) if module else (None,):
        extra = [cost + (devices[stage].draft_ms if stage == host else 0.0) for stage, cost in enumerate(ends)]
        split = balance_costs(layers, extra)
        starts = [0, *accumulate(split)]
        stage_ms = [sum(layers[i][starts[i] : starts[i + 1]]) + extra[i] for i in range(len(devices))]
        found.append(MeasuredSplit(split, tuple(stage_ms), host))
    return min(found, key=lambda made: max(made.stage_ms))


def balance_costs(layers: Sequence[Sequence[float]], extra: Sequence[float]) -> tuple[int, ...]:
    """Layers a stage such that the dearest stage is as cheap as can be: `layers[i][j]` is what layer j costs stage i.

    `extra[i]` is what else stage i does. Among the splits that reach this optimum the most even one is taken (least
    sum of squared costs, then the one that gives the earlier stages fewer layers). There are at most as many stages as
    layers, and one more.
    """
    stages, count = len(layers), len(layers[0])
    before = [[0, *accumulate(costs)] for costs in layers]
    # best[end]: the most even split of the layers [0, end) over the stages so far, among those within the limit. The
    # limit comes first because an uneven prefix with a smaller maximum could otherwise hide a more even one.
    limit = _smallest_maximum(before, extra)
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(stages):
        last = stage == stages - 1
        extended: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (cost, split) in best.items():
            for end in [count] if last else range(start + 1, count + 1):
                size = before[stage][end] - before[stage][start] + extra[stage]
                candidate = (cost + size * size, (*split, end - start))
                if size <= limit and (end not in extended or candidate < extended[end]):
                    extended[end] = candidate
        best = extended
    return best[count][1]


def _smallest_maximum(before: Sequence[Sequence[float]], extra: Sequence[float]) -> float:
    """The least possible cost of the dearest stage; `before[i][j]` is what the first j layers cost stage i."""
    stages, count = len(before), len(before[0]) - 1
    largest: dict[int, float] = {0: 0}
    for stage in range(stages):
        last = stage == stages - 1
        extended: dict[int, float] = {}
        for start, so_far in largest.items():
            for end in [count] if last else range(start + 1, count + 1):
                candidate = max(so_far, before[stage][end] - before[stage][start] + extra[stage])
                extended[end] = min(candidate, extended.get(end, candidate))
        largest = extended
    return largest[count]


def check_split(split: Sequence[int], layers: int) -> None:
    """Raises `ConfigError` where `split` does not make up a model of so many layers."""
    given = ",".join(map(str, split))
    if any(count < 1 for count in split[:-1]) or split[-1] < 0:
        raise ConfigError(f"--split {given}: every stage needs at least 1 layer; only the last may have 0")
    if sum(split) != layers:
        raise ConfigError(f"--split {given}: adds up to {sum(split)} layers, but the model has {layers}")
