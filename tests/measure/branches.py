"""What branches gain in a running engine whose stages only take their time, beside what the simulation says.

    python -m tests.measure.branches [--stages 2,4,8] [--acceptance 0.72,0.82,0.9] [--tree-width 1,2,4,8]

Stages are hollow and take `--row-cost` times as long for wide frames; the sampler takes drafts by chance, of which the
first candidate is right with the given acceptance, and twice as many candidates find the default share of what is
missed (`--scripted-rescue`). Prints a table: tokens a cycle as counted, as simulated, and by the law of a chain; and
tokens/s over those of one draft a position. The machine should be otherwise idle.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from speculation.bench.cycle_cost.lists import floats, integers
from speculation.bench.cycle_cost.point import Point, measure
from speculation.simulate.events import simulate
from speculation.simulate.pipeline import Pipeline, speed_law

_HEADER = (
    "n",
    "acceptance",
    "W",
    "m",
    "tokens/cycle",
    "simulated",
    "law of a chain",
    "tok/s",
    "simulated",
    "over W = 1",
)


def main() -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m tests.measure.branches", description=__doc__)
    parser.add_argument("--stages", type=integers, default=[2, 4, 8])
    parser.add_argument("--acceptance", type=floats, default=[0.72, 0.82, 0.9])
    parser.add_argument("--tree-width", type=integers, default=[1, 2, 4, 8])
    parser.add_argument("--tokens-per-frame", type=integers, default=[1])
    parser.add_argument("--row-cost", type=floats, default=[1.0, 1.03, 1.07, 1.10])
    parser.add_argument("--stage-ms", type=float, default=20.0)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    sys.stdout.write(f"| {' | '.join(_HEADER)} |\n|{' --- |' * len(_HEADER)}\n")
    cost = tuple(options.row_cost)
    with tempfile.TemporaryDirectory() as folder:
        for stages in options.stages:
            for acceptance in options.acceptance:
                for width in options.tokens_per_frame:
                    chain = 0.0
                    for breadth in options.tree_width:
                        point = Point(
                            stages,
                            options.stage_ms,
                            acceptance,
                            0,
                            hollow=True,
                            width=width,
                            row_cost=cost,
                            breadth=breadth,
                        )
                        row = measure(point, options.tokens, Path(folder) / "serve.log").row
                        chain = chain or row.tokens_per_second
                        pipeline = Pipeline((options.stage_ms,) * stages, row_cost=cost)
                        told = simulate(pipeline, acceptance, width=width, breadth=breadth, tokens=5000)
                        cells = (
                            str(stages),
                            f"{acceptance:g}",
                            str(breadth),
                            str(width),
                            f"{row.tokens_per_cycle or 0.0:.3f}",
                            f"{told.tokens_per_cycle:.3f}",
                            f"{speed_law(stages, acceptance, width):.3f}",
                            f"{row.tokens_per_second:.1f}",
                            f"{told.tokens_per_second:.1f}",
                            f"{row.tokens_per_second / chain:.2f}",
                        )
                        sys.stdout.write(f"| {' | '.join(cells)} |\n")
                        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
