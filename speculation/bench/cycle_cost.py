"""`python -m speculation.bench.cycle_cost`: what a cycle costs beside the stages, with stages of emulated length.

Eight stages of the built-in `tiny` model, each of which waits until its time has passed, under `none` and `scripted`.
With `--hollow` the stages compute nothing, as if a device did: on few cores their arithmetic is most of a short cycle.
The machine should be otherwise idle. Text means nothing here.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from speculation.bench.analysis.cells import Cell, CellKey
from speculation.bench.analysis.counters import Counters
from speculation.bench.analysis.figures import TableRow, rows
from speculation.bench.configuration import NONE, BenchSettings, Contender
from speculation.bench.processes import Served
from speculation.bench.prompts import Prompt
from speculation.simulate.rounds import tokens_per_cycle
from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError
from workers.shared.messages import StageTimings
from workers.shared.options.engine import DrafterOptions, EngineOptions

_PROMPT = Prompt("cycle-cost", "0", "Count.", 0)
_WARM_UP_TOKENS = 50
_HEADER = (
    "stage ms", "method", "acceptance", "δ", "tok/s", "ideal", "share", "cycle ms", "fixed ms",
    "compute", "asleep", "send", "receive", "idle",
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One configuration."""

    stages: int
    stage_ms: float
    acceptance: float | None  # None: no drafts
    delta: int
    drafts: int = 0  # a frame; 0: one token a frame, and frames in every stage
    hollow: bool = False  # stages compute nothing

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
                emulate=Emulation(stage_ms=self.stage_ms),
                hollow_stages=self.hollow,
                drafter=DrafterOptions(scripted_acceptance=self.acceptance),
            ),
        )

    def ideal(self, acceptance: float | None) -> float:
        """Tokens/s if nothing but the stages took time, at the acceptance that came out."""
        right = 0.0 if acceptance is None else acceptance
        return 1000 / self.stage_ms * tokens_per_cycle(self.stages, right, self.drafts)


def points(stages: int, stage_ms: Sequence[float], acceptances: Sequence[float], deltas: Sequence[int]) -> list[Point]:
    """For each stage time: no drafts, then each acceptance with each delta."""
    made = []
    for duration in stage_ms:
        made.append(Point(stages, duration, None, 0))
        made += [Point(stages, duration, acceptance, delta) for acceptance in acceptances for delta in deltas]
    return made


def measure(point: Point, tokens: int, log: Path) -> TableRow:
    """Starts a group, warms it up, and times one answer; raises `ConfigError`."""
    served = Served(point.contender, point.settings(tokens), None, log)
    try:
        served.wait_until_ready()
        served.answer(_PROMPT, 0.0, _WARM_UP_TOKENS)
        before = served.snapshot()
        answer = served.answer(_PROMPT, 0.0, tokens)
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
    return rows([cell])[0]


def line(point: Point, row: TableRow) -> list[str]:
    """The table's line; shares are means over the stages."""
    shares = row.stage_shares or []
    ideal = point.ideal(row.acceptance)

    def mean(values: Iterable[float]) -> str:
        return f"{100 * sum(values) / len(shares):.1f} %"

    return [
        f"{point.stage_ms:g}",
        row.method,
        "–" if row.acceptance is None else f"{row.acceptance:.3f}",
        str(point.delta),
        f"{row.tokens_per_second:.1f}",
        f"{ideal:.1f}",
        f"{100 * row.tokens_per_second / ideal:.1f} %",
        "–" if row.cycle_ms is None else f"{row.cycle_ms:.3f}",
        "–" if row.cycle_ms is None else f"{row.cycle_ms - point.stage_ms:.3f}",
        mean(stage.forward + stage.sample for stage in shares),
        mean(stage.emulate for stage in shares),
        mean(stage.send for stage in shares),
        mean(stage.receive for stage in shares),
        mean(stage.idle for stage in shares),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a Markdown table; exit status 0, or 2 where a group failed."""
    parser = argparse.ArgumentParser(prog="python -m speculation.bench.cycle_cost", description=__doc__)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--stage-ms", type=_floats, default=[5.0, 2.0, 1.0])
    parser.add_argument("--acceptance", type=_floats, default=[1.0, 0.8])
    parser.add_argument("--delta", type=_integers, default=[0, 1])
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--hollow", action="store_true", help="stages take their time and compute nothing")
    options = parser.parse_args(arguments)
    kind = "Emulated, hollow stages" if options.hollow else "Emulated stages"
    sys.stdout.write(f"{kind}; load average {os.getloadavg()[0]:.2f} before the start.\n\n")
    todo = points(options.stages, options.stage_ms, options.acceptance, options.delta)
    try:
        for text in _table([replace(point, hollow=options.hollow) for point in todo], options.tokens):
            sys.stdout.write(text)
            sys.stdout.flush()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _table(todo: Sequence[Point], tokens: int) -> Iterator[str]:
    yield f"| {' | '.join(_HEADER)} |\n"
    yield f"|{' --- |' * len(_HEADER)}\n"
    with tempfile.TemporaryDirectory() as folder:
        for point in todo:
            row = measure(point, tokens, Path(folder) / "serve.log")
            yield f"| {' | '.join(line(point, row))} |\n"


def _floats(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def _integers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
