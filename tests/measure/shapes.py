"""What it costs to choose the shape of frames as texts go, beside knowing the best one from the start.

    python -m tests.measure.shapes ANSWERS.jsonl [--stages 2,4,8] [--row-cost 1,1.03,1.07,1.1,1.22] [--answers 12]

Replays recorded answers, one kind after the other: `ANSWERS.jsonl`, or `.jsonl.gz`, has a line for each with its kind
(`source`) and its token ids (`answer_ids`). The n-gram drafter looks them up as it does in the engine, with the real
schedule and trees; only what stages take is made up. The first tokens of an answer stand for its prompt. Prints, for
each kind, the best fixed shape, and the engine's own choice as a share of its speed, and of one token a frame.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from speculation.bench.cycle_cost.lists import floats, integers
from speculation.decisions.policy import FramePolicy
from speculation.decisions.shapes.chooser import Shapes
from speculation.decisions.shapes.costs import FrameCosts
from speculation.drafters.base import Draft, Start
from speculation.drafters.ngram import NgramDrafter
from speculation.simulate.events import decode
from speculation.simulate.pipeline import Pipeline
from workers.shared.config import CHOSEN, MEASURED_ROWS
from workers.shared.frames import Shape, shapes_of
from workers.shared.messages import Sampling

_STAGE_MS = 10.0
_PROMPT = 16  # tokens
_PRIOR = 0.3  # of the n-gram drafter, as in the table of drafters
_SHAPES = shapes_of(CHOSEN, CHOSEN, MEASURED_ROWS[-1])


@dataclass
class Recorded:
    """One answer, and lookup in what is known of it."""

    tokens: Sequence[int]
    drafter: NgramDrafter = field(default_factory=lambda: NgramDrafter(4, 1, CHOSEN[-1]))

    def __post_init__(self) -> None:
        self.drafter.begin(self.tokens[:_PROMPT], Sampling(seed=0), Start())

    def token(self, position: int, before: int) -> int:
        return self.tokens[position]

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        return self.drafter.draft(tokens)

    def verified(self, tokens: Sequence[int], count: int) -> None:
        self.drafter.verified(tokens, count)


def main() -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m tests.measure.shapes", description=__doc__)
    parser.add_argument("answers_file", type=Path)
    parser.add_argument("--stages", type=integers, default=[2, 4, 8])
    parser.add_argument("--row-cost", type=floats, default=[1, 1.03, 1.07, 1.1, 1.22])
    parser.add_argument("--answers", type=int, default=12)
    options = parser.parse_args()
    sys.stdout.write(
        "| answers | n | tokens | best m, W | over m=1, W=1 | chosen, of the best | chosen, over m=1, W=1 |\n"
    )
    sys.stdout.write(f"|{' --- |' * 7}\n")
    for source, answers in _read(options.answers_file, options.answers).items():
        for stages in options.stages:
            pipeline = Pipeline((_STAGE_MS,) * stages, row_cost=tuple(options.row_cost))
            fixed = {shape: _seconds(pipeline, answers, [shape]) for shape in _SHAPES}
            best = min(_SHAPES, key=lambda shape: fixed[shape])
            costs = FrameCosts(_STAGE_MS / 1000, 0.0, tuple(options.row_cost))
            chosen = _seconds(pipeline, answers, _SHAPES, Shapes(stages, costs, _PRIOR, _SHAPES))
            cells = (
                source,
                str(stages),
                str(sum(map(len, answers))),
                f"{best.width}, {best.breadth}",
                f"{fixed[_SHAPES[0]] / fixed[best]:.2f}",
                f"{fixed[best] / chosen:.3f}",
                f"{fixed[_SHAPES[0]] / chosen:.3f}",
            )
            sys.stdout.write(f"| {' | '.join(cells)} |\n")
            sys.stdout.flush()
    return 0


def _read(path: Path, most: int) -> dict[str, list[list[int]]]:
    """Token ids of the first answers of each kind that are long enough."""
    kinds: dict[str, list[list[int]]] = {}
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            row = json.loads(line)
            answers = kinds.setdefault(row["source"], [])
            if len(answers) < most and len(row["answer_ids"]) >= 4 * _PROMPT and not row.get("temperature"):
                answers.append(row["answer_ids"])
    return kinds


def _seconds(
    pipeline: Pipeline, answers: Sequence[Sequence[int]], shapes: Sequence[Shape], chooser: Shapes | None = None
) -> float:
    policy = FramePolicy(chunks=pipeline.stages, credits=pipeline.stages, shapes=tuple(shapes))
    total = 0.0
    for answer in answers:
        new = len(answer) - _PROMPT
        got = decode(pipeline, Recorded(answer), answer[:_PROMPT], new, policy, chooser=chooser)
        total += (new - 1) / got.tokens_per_second
    return total


if __name__ == "__main__":
    sys.exit(main())
