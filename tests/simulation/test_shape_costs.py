"""What frames of a shape take: against an account of each frame of a run, and against the event simulation."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.controller import Controller
from speculation.decisions.estimates import Choice, Measured, Times
from speculation.decisions.shapes.costs import FrameCosts, held, row_costs, seconds_per_token
from speculation.simulate.events import simulate
from speculation.simulate.pipeline import Pipeline
from workers.shared.frames import Shape

SHAPES = [Shape(1, 1), Shape(1, 2), Shape(1, 8), Shape(2, 1), Shape(2, 4), Shape(4, 1), Shape(4, 4), Shape(8, 2)]
ROWS = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}

costs = st.lists(st.floats(0.0, 2.0), min_size=5, max_size=5).map(
    lambda more: tuple(1.0 + sum(more[:count]) for count in range(5))
)


def counted(stages: int, stage: float, rows: Sequence[float], shape: Shape, missed: float, right: float) -> float:
    """Seconds a token, frame by frame: when each has left each stage, and with which probability there is a next."""
    full = stage * rows[ROWS[shape.rows]]
    behind = 1 + (shape.width - 1) * shape.breadth
    below = max(count for count in ROWS if count <= behind)
    above = min(count for count in ROWS if count >= behind)
    share = 0.0 if above == below else (behind - below) / (above - below)
    first = stage * (rows[ROWS[below]] + share * (rows[ROWS[above]] - rows[ROWS[below]]))
    left = [first * (place + 1) for place in range(stages)]
    chance, seconds, tokens, next_one = 1.0, left[-1], 0.0, missed
    while chance > 1e-13:
        for _ in range(shape.width):
            tokens += chance
            chance *= next_one
            next_one = right
        before = left[-1]
        for place in range(stages):
            left[place] = max(left[place], left[place - 1] if place else 0.0) + full
        seconds += chance * (left[-1] - before)
    return seconds / tokens


shares = st.sampled_from([0.0, 0.1, 0.5, 0.8, 0.95])


@given(st.integers(1, 9), st.sampled_from(SHAPES), costs, shares, shares)
def test_seconds_a_token_are_those_of_a_run_counted_frame_by_frame(
    stages: int, shape: Shape, rows: tuple[float, ...], missed: float, right: float
) -> None:
    said = seconds_per_token(stages, FrameCosts(2.0, 0.0, rows), shape, missed, right, [1.0] * shape.width)
    assert said == pytest.approx(counted(stages, 2.0, rows, shape, missed, right), rel=1e-6)


@given(st.integers(2, 8), costs, st.floats(0.1, 0.9), st.floats(0.0, 1.0))
def test_the_shape_that_looks_best_is_the_one_that_counting_finds(
    stages: int, rows: tuple[float, ...], first: float, rescue: float
) -> None:
    any_of = {breadth: 1 - (1 - first) * (1 - rescue) ** ROWS[breadth] for breadth in (1, 2, 4, 8)}
    held_by = {shape: held(stages, shape, first, any_of[shape.breadth]) for shape in SHAPES}

    def expected(shape: Shape) -> float:
        right = held_by[shape]
        return seconds_per_token(stages, FrameCosts(1.0, 0.0, rows), shape, right, right, [1.0] * shape.width)

    found = {shape: counted(stages, 1.0, rows, shape, held_by[shape], held_by[shape]) for shape in SHAPES}
    assert found[min(SHAPES, key=expected)] == pytest.approx(min(found.values()), rel=1e-6)


@pytest.mark.parametrize(("stages", "shape"), [(2, Shape(1, 4)), (2, Shape(4, 2)), (4, Shape(2, 4)), (8, Shape(1, 8))])
@pytest.mark.parametrize("acceptance", [0.4, 0.8])
def test_it_predicts_the_event_simulation_with_branches(stages: int, shape: Shape, acceptance: float) -> None:
    rows = (1.0, 1.05, 1.1, 1.2, 1.4)
    got = simulate(
        Pipeline((1000.0,) * stages, row_cost=rows), acceptance, width=shape.width, breadth=shape.breadth, tokens=800
    )
    any_of = 1 - (1 - acceptance) * (1 - 0.42) ** ROWS[shape.breadth]
    right = held(stages, shape, acceptance, any_of)
    said = seconds_per_token(stages, FrameCosts(1.0, 0.0, rows), shape, right, right, [1.0] * shape.width)
    assert 1 / said == pytest.approx(got.tokens_per_second, rel=0.07)


def test_drafts_that_take_longer_than_a_stage_set_the_pace() -> None:
    slow = FrameCosts(1.0, 0.5, (1.0, 1.0, 1.0))
    assert slow.cycle(Shape(4, 1)) == 2.0
    assert slow.refill(3, Shape(4, 1)) == 4.5
    assert seconds_per_token(3, slow, Shape(4, 1), 1.0, 1.0, [1.0] * 4) == pytest.approx(0.5)


def test_what_a_calibration_has_found_of_a_drafter_is_where_its_shapes_begin() -> None:
    choice, other = Choice("one", prior=0.5), Choice("other", prior=0.5)
    controller = Controller(2, [choice, other])
    assert controller.costs(choice) == FrameCosts()
    times = {"one": Times(0.03, 0.07, 0.06)}
    controller.calibrate(Measured(times, drafts={"one": 0.01}, rows={1: 0.1, 2: 0.11, 4: 0.13, 16: 0.2}))
    assert controller.costs(choice) == FrameCosts(0.03, 0.01, pytest.approx((1.0, 1.1, 1.3)))
    assert controller.costs(other) == FrameCosts()


@given(st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.001, 10)))
def test_more_rows_never_cost_less(seconds: dict[int, float]) -> None:
    costs = row_costs(seconds)
    assert list(costs) == sorted(costs)
    assert bool(costs) == (1 in seconds)
    assert not costs or costs[0] == 1
