"""The layer split against brute force."""

from fractions import Fraction
from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.decisions.split import DeviceTimes, balance, balance_by_time, balance_costs, check_split
from workers.shared.errors import ConfigError

SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=7)


def all_splits(layers: int, stages: int) -> list[tuple[int, ...]]:
    """Every legal split, by brute force."""
    found = []
    for cuts in combinations_with_replacement(range(layers + 1), stages - 1):
        edges = (0, *cuts, layers)
        split = tuple(b - a for a, b in pairwise(edges))
        if all(split[:-1]):
            found.append(split)
    return found


def stage_sizes(sizes: list[int], head: int, split: tuple[int, ...]) -> list[int]:
    """Bytes a stage."""
    result, start = [], 0
    for count in split:
        result.append(sum(sizes[start : start + count]))
        start += count
    result[-1] += head
    return result


@given(SIZES, st.integers(0, 100), st.data())
def test_balance_is_optimal_and_then_even(sizes: list[int], head: int, data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(sizes) + 1))

    def cost(split: tuple[int, ...]) -> tuple[int, int]:
        loads = stage_sizes(sizes, head, split)
        return max(loads), sum(load * load for load in loads)

    split = balance(sizes, head, stages)
    candidates = all_splits(len(sizes), stages)
    assert split in candidates
    assert cost(split) == min(map(cost, candidates))


@given(st.data())
def test_stages_of_different_speed_are_balanced_as_brute_force_balances_them(data: st.DataObject) -> None:
    layers = data.draw(st.integers(1, 6))
    stages = data.draw(st.integers(1, layers + 1))
    costs = [data.draw(st.lists(st.integers(0, 50), min_size=layers, max_size=layers)) for _ in range(stages)]
    extra = data.draw(st.lists(st.integers(0, 60), min_size=stages, max_size=stages))

    def cost(split: tuple[int, ...]) -> tuple[int, int]:
        loads, start = [], 0
        for stage, count in enumerate(split):
            loads.append(sum(costs[stage][start : start + count]) + extra[stage])
            start += count
        return max(loads), sum(load * load for load in loads)

    split = balance_costs(costs, extra)
    assert cost(split) == min(map(cost, all_splits(layers, stages)))


def test_a_slow_device_gets_fewer_layers_and_the_module_goes_where_it_delays_least() -> None:
    fast, slow = DeviceTimes(1.0, 2.0, 0.0, draft_ms=4.0), DeviceTimes(2.0, 4.0, 0.0, draft_ms=8.0)
    made = balance_by_time([10] * 12, [slow, fast, fast], module=False)
    assert made == ((2, 6, 4), (4.0, 6.0, 6.0), None)
    made = balance_by_time([10] * 12, [slow, fast, fast], module=True)
    assert made.draft_stage == 1
    assert max(made.stage_ms) == 8.0  # 30 ms and 4 of the draft, less what the slow device does at half the speed
    assert balance_by_time([10] * 12, [fast] * 4, module=True).draft_stage == 0
    headless = DeviceTimes(1.0, 0.0, 0.0)
    assert balance_by_time([10, 30], [headless] * 2, module=False).stage_ms == (0.5, 1.5)


def test_equal_layers_without_head_are_shared_equally() -> None:
    assert balance([10] * 12, 0, 4) == (3, 3, 3, 3)


def test_heavy_head_takes_the_last_stage_alone() -> None:
    assert balance([1, 1, 1, 1], 100, 3) == (2, 2, 0)


def test_as_many_stages_as_layers_and_one_more() -> None:
    assert balance([5, 5, 5], 1, 3) == (1, 1, 1)
    assert balance([5, 5, 5], 1, 4) == (1, 1, 1, 0)


def test_large_models_split_quickly_over_many_stages() -> None:
    split = balance([1000 + i for i in range(128)], 5000, 32)
    assert sum(split) == 128
    assert len(split) == 32


@pytest.mark.parametrize("stages", [0, -1, 5])
def test_impossible_stage_counts_are_refused(stages: int) -> None:
    with pytest.raises(ConfigError, match=f"--stages is {stages}"):
        balance([1, 1, 1], 1, stages)


def test_splits_that_make_up_the_model_are_accepted() -> None:
    for split in ((10, 10, 8, 2), (30, 0), (30,)):
        check_split(split, 30)


@pytest.mark.parametrize(
    ("split", "reason"),
    [
        ((0, 30), "at least 1 layer"),
        ((40, -10), "at least 1 layer"),
        ((10, 10), "adds up to 20 layers, but the model has 30"),
    ],
)
def test_bad_splits_are_refused(split: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"--split {split[0]},{split[1]}.*{reason}"):
        check_split(split, 30)


@given(SIZES, st.integers(0, 100), st.data())
def test_with_speeds_the_slowest_stage_takes_the_least_possible_time(
    sizes: list[int], head: int, data: st.DataObject
) -> None:
    stages = data.draw(st.integers(1, len(sizes) + 1))
    speeds = data.draw(st.lists(st.integers(1, 1000), min_size=stages, max_size=stages))

    def slowest(split: tuple[int, ...]) -> Fraction:
        return max(Fraction(size, speed) for size, speed in zip(stage_sizes(sizes, head, split), speeds, strict=True))

    split = balance(sizes, head, stages, speeds)
    candidates = all_splits(len(sizes), stages)
    assert split in candidates
    assert slowest(split) == min(map(slowest, candidates))


def test_a_stage_twice_as_fast_holds_twice_as_much() -> None:
    assert balance([10] * 12, 0, 2, [1000, 500]) == (8, 4)
