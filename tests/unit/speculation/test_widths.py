"""How wide frames are: by simulation, never worse than one token a frame, and near the best width where one is best."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.controller import Controller
from speculation.decisions.estimates import Choice, Measured, Times
from speculation.decisions.widths import WIDTHS, WidthCosts, WidthOfFrames, Widths, row_costs
from workers.shared.emulation import cost_of_rows

CHEAP = (1.0, 1.03, 1.07, 1.1)
STEEP = (1.0, 1.5, 2.4, 4.5)
LUCK = [rng.random() for rng in [random.Random(5)] for _ in range(4001)]


@dataclass
class Machine:
    """Made up: stages that take a second a frame of one token, and a text whose drafts are right by chance."""

    stages: int
    right: Callable[[int, int], float]  # probability at a position, for a draft at a place in its frame
    rows: Sequence[float] = CHEAP
    draft: float = 0.0  # seconds
    shared: bool = False  # drafts take the stages' cores

    def seconds(self, width: int, *, empty: bool) -> float:
        stage = cost_of_rows(self.rows, width)
        if empty:
            return self.stages * stage + (width - 1) * self.draft
        return stage + width * self.draft if self.shared else max(stage, width * self.draft)

    def decode(self, answers: Sequence[int], chooser: Widths | int) -> float:
        """Seconds for answers of so many tokens. Luck is a matter of the position: it is the same for all widths."""
        total, width = 0.0, chooser if isinstance(chooser, int) else chooser.current
        for number, tokens in enumerate(answers):
            made, empty = 0, True
            if isinstance(chooser, Widths):
                chooser.begin()
            while made < tokens:
                seconds = self.seconds(width, empty=empty) * (0.95 + 0.1 * LUCK[made])
                refilled, empty, verdicts = empty, False, []
                while len(verdicts) < width and not empty:
                    position, place = made + len(verdicts), (len(verdicts) + 1) % width
                    luck = LUCK[(number * tokens + position) % len(LUCK)]
                    verdicts.append(luck < self.right(position, place))
                    empty = not verdicts[-1]
                made += len(verdicts)
                total += seconds
                if isinstance(chooser, Widths):
                    width = chooser.sampled(seconds, verdicts, refilled=refilled)
        return total


MACHINES: dict[str, dict[str, Any]] = {
    "lookup": {"right": lambda position, place: 0.3},
    "good drafts": {"right": lambda position, place: 0.8},
    "rows cost": {"right": lambda position, place: 0.8, "rows": STEEP},
    "drafts take the stages' cores": {"right": lambda position, place: 0.75, "draft": 0.6, "shared": True},
    "drafts take time": {"right": lambda position, place: 0.75 * 0.93**place, "draft": 0.3},
    "drafts get worse": {"right": lambda position, place: 0.8 * 0.5**place, "draft": 0.1},
    "the text changes": {
        "right": lambda position, place: 0.9 if position // 150 % 2 else 0.2,
        "rows": (1, 1.1, 1.3, 1.6),
    },
}


def ratios(machine: Machine, believed: Sequence[float], answers: Sequence[int]) -> tuple[float, float]:
    """Speed against one token a frame, and against the best width."""
    stage = machine.seconds(1, empty=False)
    chooser = Widths(machine.stages, WidthCosts(stage, machine.draft, tuple(believed)), 0.7)
    chosen = machine.decode(answers, chooser)
    fixed = {width: machine.decode(answers, width) for width in WIDTHS}
    return fixed[1] / chosen, min(fixed.values()) / chosen


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("answer", [64, 400])
def test_wide_frames_never_lose_two_per_cent(stages: int, name: str, answer: int) -> None:
    machine = Machine(stages, **MACHINES[name])
    against_one, against_best = ratios(machine, machine.rows, [answer] * (4000 // answer))
    assert against_one >= 0.98
    assert against_best >= 0.75


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_wrong_belief_of_what_rows_cost_is_left_soon(stages: int) -> None:
    machine = Machine(stages, lambda position, place: 0.7, rows=(1, 1.8, 3.2, 6))
    assert ratios(machine, CHEAP, [100] * 40)[0] >= 0.98


@pytest.mark.parametrize("stages", [2, 4])
def test_without_a_calibration_the_first_sample_gives_the_scale(stages: int) -> None:
    machine = Machine(stages, lambda position, place: 0.85)
    chooser = Widths(stages, WidthCosts(), 0.5)
    assert machine.decode([400] * 4, 1) / machine.decode([400] * 4, chooser) > 1.5


def test_fixed_widths_stay_and_drafters_have_widths_of_their_own() -> None:
    one, other = Choice("one", prior=0.5), Choice("other", prior=0.5)
    fixed = WidthOfFrames(2, 3, lambda choice: WidthCosts())
    fixed.sampled(one, 1.0, [True], refilled=False)
    assert (fixed.at_first, fixed.of(one)) == (3, 3)
    auto = WidthOfFrames(2, None, lambda choice: WidthCosts(1.0))
    assert auto.at_first == 1
    for _ in range(30):
        auto.begin(one)
        auto.sampled(one, 1.0, [True] * auto.of(one), refilled=False)
    assert auto.of(one) == WIDTHS[-1]
    assert auto.of(other) == 1
    assert (auto.of(one, crowded=True), fixed.of(one, crowded=True)) == (1, 3)


def test_what_a_calibration_has_found_of_a_drafter_is_where_its_widths_begin() -> None:
    choice, other = Choice("one", prior=0.5), Choice("other", prior=0.5)
    controller = Controller(2, [choice, other])
    assert controller.costs(choice) == WidthCosts()
    times = {"one": Times(0.03, 0.07, 0.06)}
    controller.calibrate(Measured(times, drafts={"one": 0.01}, rows={1: 0.1, 2: 0.11, 4: 0.13, 16: 0.2}))
    assert controller.costs(choice) == WidthCosts(0.03, 0.01, pytest.approx((1.0, 1.1, 1.3)))
    assert controller.costs(other) == WidthCosts()


@given(st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.001, 10)))
def test_more_rows_never_cost_less(seconds: dict[int, float]) -> None:
    costs = row_costs(seconds)
    assert list(costs) == sorted(costs)
    assert bool(costs) == (1 in seconds)
    assert not costs or costs[0] == 1
