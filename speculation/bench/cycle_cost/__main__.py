"""`python -m speculation.bench.cycle_cost`: what a cycle costs beside the stages, with stages of emulated length.

Stages of the built-in `tiny` model, each of which waits until its time has passed, under `none` and `scripted`. With
`--hollow` the stages compute nothing, as if a device did: on few cores their arithmetic is most of a short cycle.
Before each configuration in which no draft is wrong comes the bare one: processes that pass messages on and sleep, and
nothing else. The machine should be otherwise idle. Text means nothing here.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from speculation.bench.cycle_cost import bare
from speculation.bench.cycle_cost.lists import floats, integers
from speculation.bench.cycle_cost.point import Point, measure, points
from speculation.bench.cycle_cost.table import HEADER, bare_line, line
from workers.shared.errors import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a Markdown table; exit status 0, or 2 where a group failed."""
    parser = argparse.ArgumentParser(prog="python -m speculation.bench.cycle_cost", description=__doc__)
    parser.add_argument("--stages", type=integers, default=[8])
    parser.add_argument("--stage-ms", type=floats, default=[5.0, 2.0, 1.0])
    parser.add_argument("--acceptance", type=floats, default=[1.0, 0.8])
    parser.add_argument("--delta", type=integers, default=[0, 1])
    parser.add_argument("--tokens-per-frame", type=integers, default=[1])
    parser.add_argument("--row-cost", type=floats, default=[], help="of frames of 1, 2, 4, 8, ... tokens")
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--hollow", action="store_true", help="stages take their time and compute nothing")
    options = parser.parse_args(arguments)
    kind = "Emulated, hollow stages" if options.hollow else "Emulated stages"
    sys.stdout.write(f"{kind}; load average {os.getloadavg()[0]:.2f} before the start.\n\n")
    todo = [
        replace(point, hollow=options.hollow, row_cost=tuple(options.row_cost))
        for stages in options.stages
        for point in points(stages, options.stage_ms, options.acceptance, options.delta, options.tokens_per_frame)
    ]
    try:
        for text in _table(todo, options.tokens):
            sys.stdout.write(text)
            sys.stdout.flush()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _table(todo: Sequence[Point], tokens: int) -> Iterator[str]:
    yield f"| {' | '.join(HEADER)} |\n"
    yield f"|{' --- |' * len(HEADER)}\n"
    with tempfile.TemporaryDirectory() as folder:
        for point in todo:
            least = None
            if point.in_flight is not None:
                least = bare.measure(point.stages, point.stage_ms, point.in_flight, tokens)
                yield f"| {' | '.join(bare_line(point, least))} |\n"
            measured = measure(point, tokens, Path(folder) / "serve.log")
            yield f"| {' | '.join(line(point, measured, least))} |\n"


if __name__ == "__main__":
    sys.exit(main())
