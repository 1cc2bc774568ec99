"""What frames hold: by simulation, never worse than one token a frame, and near the best shape where one is best."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from speculation.decisions.estimates import Choice
from speculation.decisions.shapes.chooser import ShapeOfFrames, Shapes
from speculation.decisions.shapes.costs import FrameCosts, held
from workers.shared.config import CHOSEN, MEASURED_ROWS
from workers.shared.frames import Shape

CHEAP = (1.0, 1.03, 1.07, 1.1, 1.22)
STEEP = (1.0, 1.5, 2.4, 4.5, 8.0)
CHAINS = [Shape(width) for width in CHOSEN]
ALL = [shape for width in CHOSEN for breadth in CHOSEN if (shape := Shape(width, breadth)).rows <= MEASURED_ROWS[-1]]
LUCK = [(rng.random(), rng.random()) for rng in [random.Random(5)] for _ in range(4001)]


@dataclass
class Machine:
    """Made up: stages that take a second a frame of one token, and a text whose drafts are right by chance."""

    stages: int
    right: Callable[[int, int], float]  # probability at a position, for the first draft at a place in its frame
    rows: Sequence[float] = CHEAP
    draft: float = 0.0  # seconds
    shared: bool = False  # drafts take the stages' cores
    rescue: float = 0.42  # share of what is missed that twice as many candidates find
    lag: float = 1.0  # what drafts are right for in frames of twice as many tokens, as a share

    @property
    def costs(self) -> FrameCosts:
        """What it takes."""
        return FrameCosts(1.0, self.draft, tuple(self.rows))

    def seconds(self, shape: Shape, frames: int) -> float:
        """So many frames behind one that found the pipeline empty."""
        if not frames:
            return self.costs.refill(self.stages, shape)
        costs = self.costs._replace(draft=0.0) if self.shared else self.costs
        stages = costs.second(self.stages, shape) if frames == 1 else costs.cycle(shape)
        return stages + self.shared * shape.width * self.draft

    def rank(self, position: int, place: int, width: int) -> int:
        """Of the token at a position among its candidates. Luck is a matter of the position, whatever the shape."""
        right = self.right(position, place) * self.lag ** (width.bit_length() - 1)
        luck, missed = LUCK[position % len(LUCK)][0], 1 - right
        return next((rank for rank in (0, 1, 3, 7) if luck >= missed * (1 - self.rescue) ** rank.bit_length()), 9)

    def holds(self, shape: Shape, position: int, rank: int) -> bool:
        """Whether the token of this rank is among the drafts at its position."""
        further = held(self.stages, shape, 0.0, 1.0)  # of the tokens that are not the first candidates
        return rank == 0 or (rank < shape.breadth and LUCK[position % len(LUCK)][1] < further)

    def decode(self, answers: Sequence[int], chooser: Shapes | Shape) -> float:
        """Seconds for answers of so many tokens."""
        total, position = 0.0, 0
        shape = chooser if isinstance(chooser, Shape) else chooser.current
        for tokens in answers:
            end, frames = position + tokens, 0
            if isinstance(chooser, Shapes):
                chooser.begin()
            while position < end:
                seconds = self.seconds(shape, frames) * (0.95 + 0.1 * LUCK[position % len(LUCK)][1])
                verdicts, ranks = list[bool](), list[int | None]()
                while len(verdicts) < shape.width and all(verdicts):
                    rank = self.rank(position, (len(verdicts) + 1) % shape.width, shape.width)
                    ranks.append(rank)
                    verdicts.append(self.holds(shape, position, rank))
                    position += 1
                total += seconds
                refilled, frames = not frames, frames + 1 if all(verdicts) else 0
                if isinstance(chooser, Shapes):
                    shape = chooser.sampled(seconds, verdicts, ranks, refilled=refilled)
        return total / position


MACHINES: dict[str, dict[str, Any]] = {
    "lookup": {"right": lambda position, place: 0.3, "rescue": 0.15},
    "good drafts": {"right": lambda position, place: 0.8},
    "excellent drafts": {"right": lambda position, place: 0.95},
    "rows cost": {"right": lambda position, place: 0.8, "rows": STEEP},
    "rows cost a little": {"right": lambda position, place: 0.72, "rows": (1.0, 1.08, 1.2, 1.65, 2.0)},
    "drafts take the stages' cores": {"right": lambda position, place: 0.75, "draft": 0.6, "shared": True},
    "drafts take time": {"right": lambda position, place: 0.75 * 0.93**place, "draft": 0.3},
    "drafts get worse": {"right": lambda position, place: 0.8 * 0.5**place, "draft": 0.1},
    "second candidates are right": {"right": lambda position, place: 0.3, "rescue": 0.8},
    "the text changes": {
        "right": lambda position, place: 0.9 if position // 150 % 2 else 0.2,
        "rows": (1, 1.1, 1.3, 1.6, 2.2),
    },
    "a module that knows little of the newest tokens": {
        "right": lambda position, place: 0.72 * 0.97**place,
        "lag": 0.85,
    },
    "a module that drafts slowly": {"right": lambda position, place: 0.8, "lag": 0.93, "draft": 0.4},
}


@pytest.mark.parametrize("stages", [2, 8])
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("shapes", [CHAINS, ALL], ids=["chains", "trees"])
def test_no_shape_loses_two_per_cent_against_the_least(stages: int, name: str, shapes: list[Shape]) -> None:
    machine, answers = Machine(stages, **MACHINES[name]), [64] * 24
    chosen = machine.decode(answers, Shapes(stages, machine.costs, 0.7, shapes, lagging=machine.lag < 1))
    # What a lagging drafter loses in wide frames is seen against what it had in others: less surely.
    assert machine.decode(answers, shapes[0]) / chosen >= (0.98 if machine.lag == 1 else 0.97)
    assert min(machine.decode(answers, shape) for shape in shapes) / chosen >= 0.82


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_wrong_belief_of_what_rows_cost_is_left_soon(stages: int) -> None:
    machine = Machine(stages, lambda position, place: 0.7, rows=(1, 1.8, 3.2, 6, 12))
    believed = machine.costs._replace(rows=CHEAP)
    chosen = machine.decode([100] * 40, Shapes(stages, believed, 0.7, ALL))
    assert machine.decode([100] * 40, ALL[0]) / chosen >= 0.98


@pytest.mark.parametrize("stages", [2, 4])
def test_without_a_calibration_the_first_sample_gives_the_scale(stages: int) -> None:
    machine = Machine(stages, lambda position, place: 0.85)
    chooser = Shapes(stages, FrameCosts(), 0.5, CHAINS)
    assert machine.decode([400] * 4, CHAINS[0]) / machine.decode([400] * 4, chooser) > 1.5


def test_a_fixed_shape_stays_and_drafters_have_shapes_of_their_own() -> None:
    one, other = Choice("one", prior=0.5), Choice("other", prior=0.5)
    fixed = ShapeOfFrames(2, [Shape(3, 2)], lambda choice: FrameCosts())
    fixed.sampled(one, 1.0, [True], [0], refilled=False)
    assert fixed.of(one) == fixed.of(one, crowded=True) == Shape(3, 2)
    auto = ShapeOfFrames(2, ALL, lambda choice: FrameCosts(1.0))
    for _ in range(60):
        auto.begin(one)
        width = auto.of(one).width
        auto.sampled(one, 1.0, [True] * width, [0] * width, refilled=False)
    assert auto.of(one).width == CHOSEN[-1]
    assert auto.of(other) == auto.of(one, crowded=True) == Shape()


def test_branches_are_taken_where_further_candidates_are_right_before_any_was_sent() -> None:
    chooser = Shapes(4, FrameCosts(1.0, rows=(1.0, 1.01, 1.02, 1.03, 1.04)), 0.5, [Shape(1, 1), Shape(1, 4)])
    for _ in range(40):
        chooser.sampled(4.0, [False], [None], refilled=True)
    assert chooser.current == Shape(1, 1), "nothing is among the candidates"
    for _ in range(12):
        chooser.sampled(4.0, [False], [2], refilled=True)
    assert chooser.current == Shape(1, 4)


def test_a_miss_after_many_hits_is_no_loss_of_the_shape_in_use() -> None:
    chooser = Shapes(4, FrameCosts(1.0, rows=(1.0,) * 5), 0.9, [Shape(1, 1), Shape(4, 1)])
    for _ in range(200):
        width = chooser.current.width
        chooser.sampled(1.0, [True] * width, [0] * width, refilled=False)
    assert chooser.current == Shape(4, 1)
    chooser.sampled(1.0, [False], [None], refilled=False)
    for _ in range(3):
        assert chooser.sampled(4.0, [True] * 3 + [False], [0, 0, 0, None], refilled=True) == Shape(4, 1)
