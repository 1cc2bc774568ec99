"""One configuration of the rehearsal, and what is measured of it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from speculation.bench.analysis.cells import Cell, CellKey
from speculation.bench.analysis.counters import Counters
from speculation.bench.analysis.figures import TableRow, rows
from speculation.bench.configuration import NONE, BenchSettings, Contender
from speculation.bench.contenders.served import Served
from speculation.bench.cycle_cost.processor_time import ProcessorTime, per_token
from speculation.bench.prompts import Prompt
from speculation.simulate.rounds import tokens_per_cycle
from workers.shared.emulation import Emulation, cost_of_rows
from workers.shared.messages import StageTimings
from workers.shared.options.engine import DrafterOptions, EngineOptions

_PROMPT = Prompt("cycle-cost", "0", "Count.", 0)
_WARM_UP_TOKENS = 50


class MeasuredPoint(NamedTuple):
    """Of one point."""

    row: TableRow
    cpu_ms: Mapping[str, float]  # a token, by role (`speculation.bench.cycle_cost.processor_time`)


@dataclass(frozen=True)
class Point:
    """One configuration."""

    stages: int
    stage_ms: float
    acceptance: float | None  # None: no drafts
    delta: int
    drafts: int = 0  # a frame; 0: one token a frame, and frames in every stage
    hollow: bool = False  # stages compute nothing
    width: int = 1  # tokens a frame
    row_cost: tuple[float, ...] = ()  # of frames of 1, 2, 4, 8, ... tokens
    breadth: int = 1  # drafts for one position

    @property
    def contender(self) -> Contender:
        """How it is served."""
        scripted = "dtv-scripted" if self.drafts else "scripted"
        return Contender(NONE if self.acceptance is None else scripted, self.stages)

    def settings(self, tokens: int) -> BenchSettings:
        """Its settings, for `tokens` tokens."""
        return BenchSettings(
            "tiny",
            tokens,
            num_speculative_tokens=max(1, self.drafts),
            ignore_eos=True,
            engine=EngineOptions(
                delta=self.delta,
                tokens_per_frame=self.width,
                tree_width=self.breadth,
                emulate=Emulation(stage_ms=self.stage_ms, row_cost=self.row_cost),
                hollow_stages=self.hollow,
                drafter=DrafterOptions(scripted_acceptance=self.acceptance),
            ),
        )

    @property
    def in_flight(self) -> int | None:
        """Frames that are on their way at any time; None where that is a matter of chance."""
        if self.acceptance is None:
            return 1
        by_chance = self.acceptance < 1.0 or self.drafts or self.width > 1 or self.breadth > 1
        return None if by_chance else self.stages + self.delta

    def law(self, acceptance: float | None) -> float:
        """Tokens per cycle if nothing but the stages took time, at the acceptance that came out."""
        right = 0.0 if acceptance is None else acceptance
        return tokens_per_cycle(self.stages, right, self.drafts, self.width)

    def ideal(self, acceptance: float | None) -> float:
        """The same in tokens/s; frames are full."""
        rows = self.width * self.breadth
        return 1000 / (self.stage_ms * cost_of_rows(self.row_cost, rows)) * self.law(acceptance)


def points(
    stages: int,
    stage_ms: Sequence[float],
    acceptances: Sequence[float],
    deltas: Sequence[int],
    widths: Sequence[int] = (1,),
) -> list[Point]:
    """For each stage time: no drafts, then each acceptance with each delta and each width of frames."""
    made = []
    for duration in stage_ms:
        made.append(Point(stages, duration, None, 0))
        made += [
            Point(stages, duration, acceptance, delta, width=width)
            for acceptance in acceptances
            for delta in deltas
            for width in widths
        ]
    return made


def measure(point: Point, tokens: int, log: Path) -> MeasuredPoint:
    """Starts a group, warms it up, and times one answer; raises `ConfigError`."""
    served = Served(point.contender, point.settings(tokens), None, log)
    try:
        served.wait_until_ready()
        served.answer(_PROMPT, 0.0, _WARM_UP_TOKENS)
        before = served.snapshot()
        processes = ProcessorTime(served.pid, point.stages)
        spent = processes.seconds()
        answer = served.answer(_PROMPT, 0.0, tokens)
        cpu_ms = per_token(spent, processes.seconds(), tokens)
        after = served.snapshot()
    finally:
        served.stop()
    cell = Cell(
        key=CellKey(point.contender, 0.0, _PROMPT.dataset, 0),
        answers=[answer],
        counters=Counters.of(after).since(Counters.of(before)),
        prefill=[StageTimings() for _ in range(point.stages)],  # one frame among hundreds
        prompt_frames=1,
        devices=point.stages,
        energy_mj=None,
        near_ties=[],
        beside=[],
        rehearsal=after.info.rehearsal,
        emulated=after.info.emulated,
        split=",".join(map(str, after.info.split)),
        date="",
        git="",
        load=os.getloadavg()[0],
    )
    return MeasuredPoint(rows([cell])[0], cpu_ms)
