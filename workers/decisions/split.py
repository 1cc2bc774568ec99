"""Which decoder layers each stage holds.

Stages are balanced by bytes read per token, because that is what a single-token forward pass waits for. The LM head
counts as part of the last stage: for a small model it weighs as much as many layers.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import lcm

from workers.shared.errors import ConfigError


def balance(
    layer_bytes: Sequence[int], head_bytes: int, stages: int, speeds: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Layers a stage, in order, such that the stage that takes longest takes as little time as possible.

    Without `speeds`, one a stage and relative to each other, time is bytes read: all stages are alike.

    Among the splits that reach this optimum the most even one is taken (least sum of squared times, then the
    one that gives the earlier stages fewer layers). Every stage but the last has at least one layer; the last may
    hold the head alone. Raises `ConfigError` where there are fewer stages than 1 or more than layers + 1.
    """
    layers = len(layer_bytes)
    slowness = _slowness(speeds or [1] * stages)
    if stages < 1:
        raise ConfigError(f"--stages is {stages}; a pipeline needs at least 1")
    if stages > layers + 1:
        raise ConfigError(f"--stages is {stages}, but the model has only {layers} layers; use at most {layers + 1}")
    before = [0, *accumulate(layer_bytes)]
    # best[end]: the most even split of the layers [0, end) over the stages so far, among those within the limit. The
    # limit comes first because an uneven prefix with a smaller maximum could otherwise hide a more even one.
    limit = _smallest_maximum(before, head_bytes, slowness)
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(stages):
        last = stage == stages - 1
        extended: dict[int, tuple[int, tuple[int, ...]]] = {}
        for start, (cost, split) in best.items():
            ends = [layers] if last else range(start + 1, layers + 1)
            for end in ends:
                size = (before[end] - before[start] + (head_bytes if last else 0)) * slowness[stage]
                candidate = (cost + size * size, (*split, end - start))
                if size <= limit and (end not in extended or candidate < extended[end]):
                    extended[end] = candidate
        best = extended
    return best[layers][1]


def _slowness(speeds: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to 1 / speed, so that times compare exactly."""
    common = lcm(*speeds)
    return [common // speed for speed in speeds]


def _smallest_maximum(before: Sequence[int], head_bytes: int, slowness: Sequence[int]) -> int:
    """The least possible time of the slowest stage; `before[i]` is the size of the first i layers."""
    layers = len(before) - 1
    largest: dict[int, int] = {0: 0}
    for slow in slowness[:-1]:
        extended: dict[int, int] = {}
        for start, so_far in largest.items():
            for end in range(start + 1, layers + 1):
                candidate = max(so_far, (before[end] - before[start]) * slow)
                extended[end] = min(candidate, extended.get(end, candidate))
        largest = extended
    last = slowness[-1]
    return min(max(so_far, (before[layers] - before[start] + head_bytes) * last) for start, so_far in largest.items())


def check_split(split: Sequence[int], layers: int) -> None:
    """Raises `ConfigError` where `split` does not make up a model of so many layers."""
    given = ",".join(map(str, split))
    if any(count < 1 for count in split[:-1]) or split[-1] < 0:
        raise ConfigError(f"--split {given}: every stage needs at least 1 layer; only the last may have 0")
    if sum(split) != layers:
        raise ConfigError(f"--split {given}: adds up to {sum(split)} layers, but the model has {layers}")
