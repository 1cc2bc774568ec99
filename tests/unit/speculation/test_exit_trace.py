"""An exit head in a pipeline of four stages, cycle by cycle, with one draft that is wrong (PPSD)."""

import itertools

import pytest

from speculation.decisions.drafts.tree import Shoot
from speculation.decisions.features import FeatureMap, Row, RowRule, plan_draft
from speculation.decisions.policy import pipelined
from speculation.decisions.schedule import Schedule
from workers.shared.errors import ConfigError
from workers.shared.frames import Frame
from workers.shared.messages import Sample

STAGES, PROMPT = 4, 5
WRONG = 1000  # added to what would be right

# What the stages hold in each cycle, stage 0 first: positions, `x` for a dead frame. The draft for position 8 is wrong.
TRACE = """
5 . . .
6 5 . .
7 6 5 .
8 7 6 5
9 8 7 6
10 9 8 7
8 x x x
9 8 x x
10 9 8 x
11 10 9 8
12 11 10 9
"""


class Pipeline:
    """Every stage takes one cycle; what stage 0 has computed is tapped at the end of it. The token at p is p."""

    def __init__(self, wrong: set[int]) -> None:
        self.schedule = Schedule(0, STAGES, pipelined(STAGES), PROMPT, itertools.count())
        self.stages: list[Frame | None] = [None] * STAGES
        self.waiting: list[Frame] = []
        self.tapped = PROMPT  # positions
        self.cached = PROMPT  # rows of the head
        self.origin = PROMPT
        self.drafts: list[tuple[int, tuple[Row, ...]]] = []  # position and rows of each
        self._wrong = wrong
        self.schedule.start(range(PROMPT), 100)
        (prefill,) = self.schedule.announce()
        self._sample(prefill)
        self._draft()

    def cycle(self) -> str:
        """Everything moves by one stage; returns what they hold meanwhile."""
        self.stages = [self.waiting.pop(0) if self.waiting else None, *self.stages[:-1]]
        shown = " ".join("." if f is None else str(f.position) if self._alive(f) else "x" for f in self.stages)
        first, last = self.stages[0], self.stages[-1]
        if first is not None and self._alive(first):
            self.tapped = first.end
        if last is not None and self._alive(last):
            self._sample(last)
        self._draft()
        return shown

    def _alive(self, frame: Frame) -> bool:
        return frame.epoch == self.schedule.epoch

    def _sample(self, frame: Frame) -> None:
        step = self.schedule.sample(Sample(0, frame.epoch, frame.end, (frame.end,)))
        if step.rejected:
            self.origin = self.tapped = frame.end
            self.cached = min(self.cached, frame.end)
        self.waiting += self.schedule.announce()

    def _draft(self) -> None:
        """As `PdmDrafter` does."""
        while self.schedule.wants_draft():
            newest = self.schedule.end - 1
            plan = plan_draft(1, self.origin, newest, min(self.cached, newest), first=1)
            if plan.rows[-1].position >= self.tapped:
                return
            self.cached = plan.rows[0].position + plan.persistent
            self.drafts.append((newest + 1, plan.rows))
            right = newest + 1
            token = right + WRONG if right in self._wrong else right
            self.schedule.grow([Shoot(self.schedule.leaves[0], token)])
            self._wrong.discard(right)
            self.waiting += self.schedule.announce()


def test_the_trace_with_one_reject() -> None:
    pipeline = Pipeline(wrong={8})
    assert [pipeline.cycle() for _ in range(11)] == TRACE.split("\n")[1:-1]
    assert pipeline.schedule.tokens[: pipeline.schedule.verified] == list(range(11))


def test_a_draft_computes_one_row_behind_stage_0() -> None:
    pipeline = Pipeline(wrong={8, 13})
    for _ in range(40):
        pipeline.cycle()
    assert len(pipeline.drafts) > 20
    assert all(rows == (Row(position - 1, 1),) for position, rows in pipeline.drafts)


@pytest.mark.parametrize("wrong_every", [2, 3, 5, 1000])
def test_tokens_per_cycle_are_those_of_the_law(wrong_every: int) -> None:
    """The exit head is on the way from stage 0 to the next frame, and costs no cycle where it takes no time."""
    pipeline = Pipeline(wrong=set(range(PROMPT + wrong_every, 90, wrong_every)))
    cycles = 0
    while pipeline.schedule.verified < 90:
        pipeline.cycle()
        cycles += 1
    counts = pipeline.schedule.counts
    acceptance = counts.accepted / (counts.accepted + counts.rejected)
    assert counts.cycles == cycles
    assert (90 - PROMPT - 1) / cycles == pytest.approx(1 / (1 + (STAGES - 1) * (1 - acceptance)), rel=0.06)


def test_rows_are_final_behind_stage_0_and_read_what_it_has() -> None:
    features = FeatureMap((0, 4, 8, 16), (9, 8, 8, 5), RowRule.EXIT)
    assert (features.first, features.last, features.final_kind) == (1, 1, 2)
    assert features.read == (4, 8)
    features.check_read()
    with pytest.raises(
        ConfigError, match=r"--split 3,27: stage 0 has 3 layers, and the exit head's exits are behind 4"
    ):
        FeatureMap((0, 4, 8, 16), (3, 27), RowRule.EXIT).check_read()
    assert FeatureMap((0, 4, 8, 16), (3, 27)).read == (4, 8, 16)
