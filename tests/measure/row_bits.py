"""Whether a row's bits depend on the rows beside it, at one shape: what could be promised of frames with branches.

    python -m tests.measure.row_bits [--model tiny|default|FOLDER] [--rows 2,4,8,16] [--trials 20]

For frames of so many rows, all behind one text, counts in how many trials the hidden state of a row, or its logits from
equal hidden states, changes a bit where

* neighbours: the other rows hold other tokens;
* place: it is another row of the frame;
* slot: its keys and values are in another slot of scratch, or in the position's own row;
* parent: the token before it is in scratch, or in the position's own row, all else equal;
* alone: it is computed in a frame of its own, as plain decoding does.
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from workers.model.shard import Shard
from workers.prepare.prepare import prepare
from workers.shared.frames import REAL, Branches
from workers.shared.model_files.facts import read_facts

_TEXT = 100  # tokens before
_SCRATCH = 32


class _Frames:
    """One model, and frames behind one text."""

    def __init__(self, model: str) -> None:
        folder = prepare(model)
        facts = read_facts(folder)
        torch.set_num_threads(1)
        self.vocab_size = facts.vocab_size
        self._shard = Shard.load(
            folder,
            range(facts.num_hidden_layers),
            first=True,
            last=True,
            dtype=torch.float32,
            device=torch.device("cpu"),
            max_len=_TEXT + 16,
            sequences=1,
            scratch=_SCRATCH,
        )
        self._shard.forward(0, 0, [7 * place % self.vocab_size for place in range(_TEXT)], None)

    def level(self, tokens: Sequence[int], slots: Sequence[int]) -> Tensor:
        """Hidden states of drafts for one position."""
        branches = Branches(_TEXT, tuple((slot,) for slot in slots))
        return self._shard.forward(0, _TEXT, tokens, None, None, branches).clone()

    def behind(self, parent: int, slot: int, tokens: Sequence[int]) -> Tensor:
        """Hidden states of drafts behind `parent`, which is in `slot`."""
        self.level([parent], [slot])
        paths = tuple((slot, _SCRATCH - 1 - row) for row in range(len(tokens)))
        return self._shard.forward(0, _TEXT + 1, tokens, None, None, Branches(_TEXT, paths)).clone()

    def alone(self, token: int) -> Tensor:
        """The hidden state of a frame of one token."""
        return self._shard.forward(0, _TEXT, [token], None).clone()

    def logits(self, hidden: Tensor) -> Tensor:
        """Of every row."""
        return self._shard.row_logits(hidden)


def main() -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m tests.measure.row_bits", description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rows", default="2,4,8,16")
    parser.add_argument("--trials", type=int, default=20)
    options = parser.parse_args()
    frames, rng = _Frames(options.model), random.Random(1)
    sys.stdout.write(
        "| rows | what changes | trials with another bit | of logits from equal states |\n|---|---|---|---|\n"
    )
    for rows in map(int, options.rows.split(",")):
        for name, trial in _TRIALS.items():
            found = [trial(frames, rows, rng) for _ in range(options.trials)]
            hidden, logits = (sum(pair[which] for pair in found) for which in (0, 1))
            shown = f"{logits} of {len(found)}" if name in ("neighbours", "place", "alone") else "–"
            sys.stdout.write(f"| {rows} | {name} | {hidden} of {len(found)} | {shown} |\n")
            sys.stdout.flush()
    return 0


Trial = Callable[[_Frames, int, random.Random], tuple[bool, bool]]


def _neighbours(frames: _Frames, rows: int, rng: random.Random) -> tuple[bool, bool]:
    slots = [REAL, *range(rows - 1)]
    row, token = rng.randrange(rows), rng.randrange(frames.vocab_size)
    one, other = (_with(frames, rows, row, token, rng) for _ in range(2))
    first, second = frames.level(one, slots), frames.level(other, slots)
    same = second.clone()
    same[row] = first[row]
    return _differ(first[row], second[row]), _differ(frames.logits(first)[row], frames.logits(same)[row])


def _place(frames: _Frames, rows: int, rng: random.Random) -> tuple[bool, bool]:
    row, other = rng.sample(range(rows), 2)
    tokens = _with(frames, rows, row, rng.randrange(frames.vocab_size), rng)
    slots = list(range(rows))
    first = frames.level(tokens, slots)
    order = list(range(rows))
    order[row], order[other] = other, row
    second = frames.level([tokens[at] for at in order], [slots[at] for at in order])
    return _differ(first[row], second[other]), _differ(frames.logits(first)[row], frames.logits(first[order])[other])


def _slot(frames: _Frames, rows: int, rng: random.Random) -> tuple[bool, bool]:
    tokens, row = _with(frames, rows, 0, rng.randrange(frames.vocab_size), rng), rng.randrange(rows)
    slots = list(range(rows))
    moved = [*slots[:row], rng.choice([REAL, rows + 3, _SCRATCH - 1]), *slots[row + 1 :]]
    return _differ(frames.level(tokens, slots)[row], frames.level(tokens, moved)[row]), False


def _parent(frames: _Frames, rows: int, rng: random.Random) -> tuple[bool, bool]:
    tokens, parent = _with(frames, rows, 0, 5, rng), rng.randrange(frames.vocab_size)
    return _differ(frames.behind(parent, REAL, tokens), frames.behind(parent, 0, tokens)), False


def _alone(frames: _Frames, rows: int, rng: random.Random) -> tuple[bool, bool]:
    token = rng.randrange(frames.vocab_size)
    tokens = _with(frames, rows, 0, token, rng)
    wide, alone = frames.level(tokens, [REAL, *range(rows - 1)]), frames.alone(token)
    same = wide.clone()
    same[0] = alone[0]
    return _differ(wide[0], alone[0]), _differ(frames.logits(same)[0], frames.logits(alone)[0])


def _with(frames: _Frames, rows: int, row: int, token: int, rng: random.Random) -> list[int]:
    tokens = [rng.randrange(frames.vocab_size) for _ in range(rows)]
    tokens[row] = token
    return tokens


def _differ(one: Tensor, other: Tensor) -> bool:
    return not torch.equal(one, other)


_TRIALS: dict[str, Trial] = {
    "neighbours": _neighbours,
    "place": _place,
    "slot": _slot,
    "parent": _parent,
    "alone": _alone,
}

if __name__ == "__main__":
    sys.exit(main())
