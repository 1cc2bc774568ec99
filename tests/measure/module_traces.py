"""What a draft module drafts along recorded answers, in frames of several widths, with the pipeline full.

    python -m tests.measure.module_traces MODEL MODULE ANSWERS.jsonl... --out TRACES.jsonl [--stages 2,4,8]

`ANSWERS.jsonl` is what `echelon distill` writes; the name of a file is the kind of its answers. A draft depends on how
many tokens of its own frame stand before it, so every position has as many drafts as a frame has places. The stages are
those of a balanced split. `tests.measure.shapes` replays what comes out.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from speculation.bench.cycle_cost.lists import integers
from speculation.decisions.features import FeatureMap
from speculation.pdm.checkpoint import load_module
from speculation.pdm.config import read_config
from speculation.pdm.module import DraftModule
from speculation.training.examples.data import Example, load_examples
from speculation.training.examples.draws import build_chain
from speculation.training.examples.layout import PackedRows
from speculation.training.teacher import LiveTeacher, load_target, load_tokenizer
from workers.decisions.split import balance
from workers.shared.config import CHOSEN
from workers.shared.model_files.tensor_sizes import layer_bytes

_CANDIDATES = 8  # most drafts a position
_TOGETHER = 24  # frames in one pass


class Draft(msgspec.Struct, frozen=True, array_like=True):
    """The likeliest tokens, and how likely they are."""

    tokens: tuple[int, ...]
    chances: tuple[float, ...]


class Trace(msgspec.Struct, frozen=True):
    """One answer; `drafts` by "n m", then by the draft's place in its frame, then by position from the prompt's end."""

    source: str
    prompt: list[int]
    answer: list[int]
    drafts: dict[str, list[list[Draft]]]


def main() -> int:
    """Writes a line for each answer."""
    parser = argparse.ArgumentParser(prog="python -m tests.measure.module_traces", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("module", type=Path)
    parser.add_argument("answers_files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stages", type=integers, default=[2, 4, 8])
    parser.add_argument("--answers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=160, help="of an answer")
    options = parser.parse_args()
    config = read_config(options.module)
    module = load_module(options.module, options.model, config.target)
    target = load_target(options.model, torch.bfloat16, "cpu")
    tokenizer = load_tokenizer(options.model)
    layers, head = layer_bytes(options.model)
    splits = [FeatureMap(config.anchors, balance(layers, head, stages)) for stages in options.stages]
    with options.out.open("wb") as out:
        for path in options.answers_files:
            examples = load_examples([path], tokenizer, config.vocab_size, 1 << 20, 0.0)[: options.answers]
            for example in (_cut(example, options.tokens) for example in examples):
                teacher = LiveTeacher(target, config.anchors, [example])
                drafts = _drafts(module, teacher.targets([0]).anchors, example, splits)
                prompt, answer = example.tokens[: example.prompt_length], example.tokens[example.prompt_length :]
                out.write(msgspec.json.encode(Trace(path.stem, list(prompt), list(answer), drafts)) + b"\n")
                sys.stderr.write(f"{path.stem}: {len(answer)} tokens\n")
    return 0


def _cut(example: Example, tokens: int) -> Example:
    return replace(example, tokens=example.tokens[: example.prompt_length + tokens])


@torch.no_grad()
def _drafts(
    module: DraftModule, anchors: torch.Tensor, example: Example, splits: Sequence[FeatureMap]
) -> dict[str, list[list[Draft]]]:
    """Of every split and width: by place, by position."""
    newest = range(example.prompt_length, len(example.tokens))
    found: dict[str, list[list[Draft]]] = {}
    for features, width in itertools.product(splits, CHOSEN):
        places: list[list[Draft]] = [[Draft((), ())] * len(newest) for _ in range(width)]
        full = features.stages * width + width - 1
        for some in _batches(newest):
            chains = [build_chain(features, last, full, width=width, drafts=width) for last in some if last >= full]
            if not chains:
                continue
            packed = PackedRows([chains], [0], "cpu")
            with torch.autocast("cpu", torch.bfloat16):
                chances = module.logits(packed.forward(module, anchors)).softmax(-1)
            likely = chances.topk(_CANDIDATES)
            tokens = module.draft_to_target[likely.indices].tolist()
            for row, position in enumerate(packed.newest.tolist()):
                if position in newest:  # the newest of a frame comes first
                    draft = Draft(tuple(tokens[row]), tuple(round(chance, 4) for chance in likely.values[row].tolist()))
                    places[width - 1 - row % width][position - newest.start] = draft
        found[f"{features.stages} {width}"] = places
    return found


def _batches(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(positions), _TOGETHER):
        yield positions[start : start + _TOGETHER]


if __name__ == "__main__":
    sys.exit(main())
