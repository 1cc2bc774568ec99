"""`python -m speculation.bench.validate`: the simulation against real processes with emulated stages.

Runs a grid of points, fits the costs of orchestration to every fourth of them, and compares the rest with what is
predicted. The stages are hollow: what is simulated has a core for every process, which few machines have for eight that
compute. Takes about a quarter of an hour; the machine should be otherwise idle.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from speculation.bench.cycle_cost.point import Point, measure, points
from speculation.simulate.fit import Costs, Run, fit, predict
from workers.shared.errors import ConfigError

_STAGES = (2, 4, 8)
_STAGE_MS = (2.0, 5.0)
_ACCEPTANCES = (1.0, 0.8, 0.6)
_DELTAS = (0, 1)
_DRAFTS = 4  # a frame of draft-then-verify
_FIT_TO_EVERY = 4
_CLOSE = 0.05


def grid() -> list[Point]:
    """All points: 42 of pipelines and 9 of draft-then-verify."""
    pipelined = [point for stages in _STAGES for point in points(stages, _STAGE_MS, _ACCEPTANCES, _DELTAS)]
    slow = max(_STAGE_MS)
    rounds = [Point(stages, slow, a, 0, _DRAFTS) for stages in _STAGES for a in _ACCEPTANCES]
    return [replace(point, hollow=True) for point in pipelined + rounds]


def fitted_to(runs: Sequence[Run]) -> list[Run]:
    """The runs that costs are fitted to; the others are held out."""
    return list(runs[::_FIT_TO_EVERY])


def report(runs: Sequence[Run], costs: Costs, tokens: int = 2000) -> str:
    """A Markdown table of the runs that `costs` were not fitted to, and how many are predicted closely.

    `tokens` are simulated for each of them.
    """
    held_out = [run for place, run in enumerate(runs) if place % _FIT_TO_EVERY]
    predictions = [predict(run, costs, tokens) for run in held_out]
    errors = [made / run.tokens_per_second - 1 for made, run in zip(predictions, held_out, strict=True)]
    close = sum(abs(value) <= _CLOSE for value in errors)
    lines = [
        f"Fitted to {len(runs) - len(held_out)} other runs: control {costs.control_ms:g} ms, commit "
        f"{costs.commit_ms:g} ms, overhead {costs.overhead_ms:g} ms a frame.",
        f"{close} of {len(held_out)} predictions are within {100 * _CLOSE:g} %.",
        "",
        "| n | stage ms | acceptance | δ | k | emulated tok/s | predicted | error |",
        "|" + " --- |" * 8,
    ]
    for run, predicted, value in zip(held_out, predictions, errors, strict=True):
        acceptance = "none" if run.acceptance is None else f"{run.acceptance:.3f}"
        lines.append(
            f"| {run.stages} | {run.stage_ms:g} | {acceptance} | {run.delta} | {run.drafts or '–'} | "
            f"{run.tokens_per_second:.1f} | {predicted:.1f} | {100 * value:+.1f} % |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 where a group failed."""
    parser = argparse.ArgumentParser(prog="python -m speculation.bench.validate", description=__doc__)
    parser.add_argument("--tokens", type=int, default=400, help="a run")
    options = parser.parse_args(arguments)
    runs = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for point in tqdm(grid(), unit="run"):
                row = measure(point, options.tokens, Path(folder) / "serve.log").row
                speed = row.tokens_per_second
                runs.append(Run(point.stages, point.stage_ms, point.delta, row.acceptance, speed, point.drafts))
    except ConfigError as failure:
        sys.stderr.write(f"{failure}\n")
        return 2
    sys.stdout.write(report(runs, fit(fitted_to(runs))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
