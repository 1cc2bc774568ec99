"""Rows that are nodes of a tree, in every architecture: each gets what it would get in a frame of its own text."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.model.conftest import CONFIGS
from tests.model.pipeline import CPU, Pipeline
from tests.model.test_draft_then_verify import NEAR
from workers.model.shard import Shard
from workers.shared.frames import REAL, Branches
from workers.shared.frames import Path as Slots

SCRATCH = 12
PROMPT = [(7 * place + 3) % 199 for place in range(17)]  # longer than the windows
POISON = 1e4


def poison(shard: Shard, *, used: set[int], end: int) -> None:
    """Large values in all rows that nobody may read: free slots, and whatever lies behind the text."""
    for tensors in shard.kv.layers(0).values():
        for tensor in tensors:
            free = [slot for slot in range(SCRATCH) if slot not in used]
            tensor[:, :, free] = POISON
            tensor[:, :, SCRATCH + end :] = POISON


def oracle(pipeline: Pipeline, text: list[int]) -> Tensor:
    """Logits behind a text that is computed at once."""
    return pipeline.frame(0, text)


def close(got: Tensor, expected: Tensor) -> bool:
    return float((got - expected).abs().max()) <= NEAR * float(expected.abs().max())


@pytest.fixture
def shard(model_folder: Path) -> Shard:
    layers = next(iter(CONFIGS.values())).num_hidden_layers
    return Shard.load(
        model_folder,
        range(layers),
        first=True,
        last=True,
        dtype=torch.float32,
        device=CPU,
        max_len=64,
        sequences=1,
        scratch=SCRATCH,
    )


def test_every_node_gets_the_logits_of_its_own_text(model_folder: Path, shard: Shard) -> None:
    rng = random.Random(5)
    plain = Pipeline(model_folder, (6,), max_len=64)
    poison(shard, used=set(), end=0)
    shard.forward(0, 0, PROMPT, None)
    base = len(PROMPT)
    level: list[tuple[Slots, list[int]]] = [((), PROMPT)]
    free = list(range(SCRATCH))
    rng.shuffle(free)
    used: set[int] = set()
    for depth in range(3):
        nodes: list[tuple[Slots, list[int]]] = []
        for place in range(4):
            path, text = rng.choice(level)
            slot = REAL if place == depth else free.pop()  # of the level, any may have the row of the position
            used |= {slot} - {REAL}
            nodes.append(((*path, slot), [*text, rng.randrange(199)]))
        branches = Branches(base, tuple(path for path, _ in nodes))
        hidden = shard.forward(0, base + depth, [text[-1] for _, text in nodes], None, None, branches)
        for logits, (_, text) in zip(shard.row_logits(hidden), nodes, strict=True):
            assert close(logits, oracle(plain, text))
        poison(shard, used=used, end=base + depth + 1)
        level = nodes


def test_several_levels_in_one_frame_and_a_right_draft_that_is_moved(model_folder: Path, shard: Shard) -> None:
    plain = Pipeline(model_folder, (6,), max_len=64)
    shard.forward(0, 0, PROMPT, None)
    base, tokens = len(PROMPT), [5, 6, 7, 8, 9]
    paths: tuple[Slots, ...] = ((REAL,), (3,), (REAL, REAL), (3, 4), (3, 4, REAL))
    hidden = shard.forward(0, base, tokens, None, None, Branches(base, paths))
    texts = [[5], [6], [5, 7], [6, 8], [6, 8, 9]]
    for logits, text in zip(shard.row_logits(hidden), texts, strict=True):
        assert close(logits, oracle(plain, PROMPT + text))
    shard.move(0, [(3, base), (4, base + 1)])
    poison(shard, used=set(), end=base + 3)
    hidden = shard.forward(0, base + 3, [10], None)
    assert close(shard.logits(hidden), oracle(plain, [*PROMPT, 6, 8, 9, 10]))
    kept = [tensor.clone() for tensors in shard.kv.layers(0).values() for tensor in tensors]
    hidden = shard.forward(0, base + 4, [11, 12], None, None, Branches(base + 3, ((REAL, 5), (REAL, REAL))))
    assert close(shard.row_logits(hidden)[0], oracle(plain, [*PROMPT, 6, 8, 9, 10, 11]))
    now = [tensor for tensors in shard.kv.layers(0).values() for tensor in tensors]
    for before, after in zip(kept, now, strict=True):
        changed = (before != after).any(dim=-1).any(dim=1)[0].nonzero().flatten().tolist()
        assert set(changed) <= {5, SCRATCH + base + 4}, "other rows were written"


def test_a_chain_is_the_same_bits_with_scratch_in_front_of_it(model_folder: Path, shard: Shard) -> None:
    plain = Pipeline(model_folder, (6,), max_len=64)
    for start, tokens in ((0, PROMPT), (17, [5]), (18, [6, 7, 8]), (20, [9])):
        hidden = shard.forward(0, start, tokens, None)
        assert torch.equal(shard.logits(hidden), plain.frame(start, tokens))


def test_keys_and_values_of_eight_bits_branch_too(model_folders: dict[str, Path]) -> None:
    layers = CONFIGS["llama"].num_hidden_layers
    shard = Shard.load(
        model_folders["llama"],
        range(layers),
        first=True,
        last=True,
        dtype=torch.float32,
        device=CPU,
        max_len=64,
        sequences=1,
        kv_dtype=torch.float8_e4m3fn,
        scratch=SCRATCH,
    )
    shard.forward(0, 0, PROMPT, None)
    chain = shard.logits(shard.forward(0, len(PROMPT), [5, 6], None))
    paths: tuple[Slots, ...] = ((2,), (2, 7), (REAL,))
    hidden = shard.forward(0, len(PROMPT), [5, 6, 9], None, None, Branches(len(PROMPT), paths))
    rows = shard.row_logits(hidden)
    assert float((rows[1] - chain).abs().max()) < 0.05 * float(chain.abs().max())
    shard.move(0, [(2, len(PROMPT)), (7, len(PROMPT) + 1)])
    behind = shard.logits(shard.forward(0, len(PROMPT) + 2, [8], None))
    shard.forward(0, len(PROMPT), [5, 6], None)
    again = shard.logits(shard.forward(0, len(PROMPT) + 2, [8], None))
    assert float((behind - again).abs().max()) < 0.05 * float(again.abs().max())
