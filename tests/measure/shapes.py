"""What it costs to choose the shape of frames as texts go, beside knowing the best one from the start.

    python -m tests.measure.shapes ANSWERS.jsonl [--stages 2,4,8] [--row-cost 1,1.03,1.07,1.1,1.22] [--answers 12]
    python -m tests.measure.shapes TRACES.jsonl --draft-ms 3 ...

Replays recorded answers, one kind after the other, with the real schedule and trees; only what stages and drafts take
is made up. `ANSWERS.jsonl`, or `.jsonl.gz`, has a line for each answer with its kind (`source`) and its token ids
(`answer_ids`): the n-gram drafter looks them up as it does in the engine, and the first tokens of an answer stand for
its prompt. `TRACES.jsonl` is what `tests.measure.module_traces` writes: drafts are those of a draft module. Prints, for
each kind, the best fixed shape, and the engine's own choice as a share of its speed, and of one token a frame.
"""

import argparse
import gzip
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from speculation.bench.cycle_cost.lists import floats, integers
from speculation.decisions.policy import FramePolicy
from speculation.decisions.shapes.chooser import Shapes
from speculation.decisions.shapes.costs import FrameCosts
from speculation.drafters.base import Draft, Start
from speculation.drafters.ngram import NgramDrafter
from speculation.simulate.events import DraftedText, decode
from speculation.simulate.pipeline import Pipeline
from tests.measure.module_traces import Draft as Drafted
from tests.measure.module_traces import Trace
from workers.shared.config import CHOSEN, MEASURED_ROWS
from workers.shared.frames import Shape, shapes_of
from workers.shared.messages import Sampling

_STAGE_MS = 10.0
_PROMPT = 16  # tokens
_PRIOR, _MODULE_PRIOR = 0.3, 0.7  # of the n-gram drafter and of a draft module, as in the table of drafters
_SHAPES = shapes_of(CHOSEN, CHOSEN, MEASURED_ROWS[-1])


class Replayed(DraftedText, Protocol):
    """An answer behind its prompt, and its drafts."""

    tokens: Sequence[int]
    prompt: int


@dataclass
class Recorded:
    """One answer, and lookup in what is known of it."""

    tokens: Sequence[int]
    prompt: int = _PROMPT
    drafter: NgramDrafter = field(default_factory=lambda: NgramDrafter(4, 1, CHOSEN[-1]))

    def __post_init__(self) -> None:
        self.drafter.begin(self.tokens[:_PROMPT], Sampling(seed=0), Start())

    def token(self, position: int, before: int) -> int:
        return self.tokens[position]

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        return self.drafter.draft(tokens)

    def verified(self, tokens: Sequence[int], count: int) -> None:
        self.drafter.verified(tokens, count)


@dataclass
class Traced:
    """One answer, and what a draft module drafted for it in frames of any width, the pipeline being full."""

    tokens: Sequence[int]
    prompt: int
    drafts: Mapping[int, Sequence[Sequence[Drafted]]]  # by width, place in the frame, and position behind the prompt
    shape: Callable[[], Shape]
    origin: int = 0
    said: dict[int, Sequence[int]] = field(default_factory=dict)  # by position

    def __post_init__(self) -> None:
        self.origin = self.prompt

    def token(self, position: int, before: int) -> int:
        return self.tokens[position]

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        """Behind a wrong draft it does not matter what is drafted."""
        width, breadth = self.shape().width, self.shape().breadth
        place = (len(tokens) - self.origin) % width
        found = self.drafts[width][place]
        index = len(tokens) - 1 - self.prompt
        if not 0 <= index < len(found) or not (drafted := found[index]).tokens:
            return None
        self.said[len(tokens)] = drafted.tokens[:breadth]
        return Draft(drafted.tokens[:breadth], drafted.chances[0], chances=drafted.chances[:breadth])

    def verified(self, tokens: Sequence[int], count: int) -> None:
        if tokens[count - 1] not in self.said.get(count - 1, ()):
            self.origin = count - 1


def main() -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m tests.measure.shapes", description=__doc__)
    parser.add_argument("answers_file", type=Path)
    parser.add_argument("--stages", type=integers, default=[2, 4, 8])
    parser.add_argument("--row-cost", type=floats, default=[1, 1.03, 1.07, 1.1, 1.22])
    parser.add_argument("--answers", type=int, default=12)
    parser.add_argument("--draft-ms", type=float, default=0.0, help="of a draft")
    options = parser.parse_args()
    sys.stdout.write(
        "| answers | n | tokens | best m, W | over m=1, W=1 | chosen, of the best | chosen, over m=1, W=1 |\n"
    )
    sys.stdout.write(f"|{' --- |' * 7}\n")
    traced, kinds = _read(options.answers_file, options.answers)
    prior = _MODULE_PRIOR if traced else _PRIOR
    for source, texts in kinds.items():
        for stages in options.stages:
            pipeline = Pipeline((_STAGE_MS,) * stages, row_cost=tuple(options.row_cost), draft_ms=options.draft_ms)
            fixed = {shape: _seconds(pipeline, texts, [shape]) for shape in _SHAPES}
            best = min(_SHAPES, key=lambda shape: fixed[shape])
            costs = FrameCosts(_STAGE_MS / 1000, options.draft_ms / 1000, tuple(options.row_cost))
            chosen = _seconds(pipeline, texts, _SHAPES, Shapes(stages, costs, prior, _SHAPES, lagging=traced))
            cells = (
                source,
                str(stages),
                str(sum(len(text.tokens) - text.prompt for text in _opened(texts, stages, _SHAPES[0]))),
                f"{best.width}, {best.breadth}",
                f"{fixed[_SHAPES[0]] / fixed[best]:.2f}",
                f"{fixed[best] / chosen:.3f}",
                f"{fixed[_SHAPES[0]] / chosen:.3f}",
            )
            sys.stdout.write(f"| {' | '.join(cells)} |\n")
            sys.stdout.flush()
    return 0


# Makes an answer's drafts for so many stages, in frames whose shape is asked for.
Open = Callable[[int, Callable[[], Shape]], Replayed]


def _read(path: Path, most: int) -> tuple[bool, dict[str, list[Open]]]:
    """The first answers of each kind that are long enough, and whether they are traces of a module."""
    kinds: dict[str, list[Open]] = {}
    traced = False
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
        for line in lines:
            row = msgspec.json.decode(line)
            answers = kinds.setdefault(row["source"], [])
            if len(answers) == most or row.get("temperature"):
                continue
            if "drafts" in row:
                traced = True
                answers.append(partial(_traced, msgspec.convert(row, Trace)))
            elif len(row["answer_ids"]) >= 4 * _PROMPT:
                answers.append(partial(_recorded, row["answer_ids"]))
    return traced, kinds


def _recorded(answer: Sequence[int], _stages: int, _shape: Callable[[], Shape]) -> Recorded:
    return Recorded(answer)


def _traced(trace: Trace, stages: int, shape: Callable[[], Shape]) -> Traced:
    drafts = {int(name.split()[1]): of for name, of in trace.drafts.items() if int(name.split()[0]) == stages}
    return Traced([*trace.prompt, *trace.answer], len(trace.prompt), drafts, shape)


def _opened(texts: Sequence[Open], stages: int, shape: Shape) -> list[Replayed]:
    return [text(stages, lambda: shape) for text in texts]


def _seconds(
    pipeline: Pipeline, texts: Sequence[Open], shapes: Sequence[Shape], chooser: Shapes | None = None
) -> float:
    policy = FramePolicy(chunks=pipeline.stages, credits=pipeline.stages, shapes=tuple(shapes))
    total = 0.0
    for text in texts:
        replayed = text(pipeline.stages, lambda: shapes[0] if chooser is None else chooser.current)
        new = len(replayed.tokens) - replayed.prompt
        got = decode(pipeline, replayed, replayed.tokens[: replayed.prompt], new, policy, chooser=chooser)
        total += (new - 1) / got.tokens_per_second
    return total


if __name__ == "__main__":
    sys.exit(main())
