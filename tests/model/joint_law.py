"""Whether answers have the distribution of the model: all answers of three tokens, of a vocabulary of five."""

from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from speculation.drafters.base import Maker
from tests.harness import local_engine
from tests.model.conftest import SIZES, write_model
from tests.model.pipeline import Pipeline
from workers.shared.messages import Sampling

_PROMPT = [1, 2, 1, 2, 1]
_COUNT = 600  # answers


def check_joint_law(folder: Path, make: Maker, **settings: int) -> None:
    """All 125 answers against exact enumeration, by chi-square, with the drafters of `make` in an engine of two stages.

    The model is written into `folder`.
    """
    write_model(LlamaConfig(**{**SIZES, "vocab_size": 5, "num_hidden_layers": 2}), folder)
    shares = _shares(Pipeline(folder, (1, 1)))
    with local_engine(folder, (1, 1), max_model_len=32, **settings) as running:
        running.drafting.use(make)
        sent = [running.client.send(_PROMPT, 4, Sampling(seed=seed)) for seed in range(_COUNT)]
        results = running.client.results(dict.fromkeys(sent)).values()
    seen = Counter(tuple(result.tokens[:3]) for result in results)
    assert sum(result.counts.accepted for result in results if result.counts is not None) > _COUNT / 10
    statistic, cells, rare, rare_seen = 0.0, 0, 0.0, 0
    for answer, share in shares.items():
        if share * _COUNT < 5:
            rare, rare_seen = rare + share * _COUNT, rare_seen + seen[answer]
        else:
            statistic, cells = statistic + (seen[answer] - share * _COUNT) ** 2 / (share * _COUNT), cells + 1
    statistic += (rare_seen - rare) ** 2 / max(rare, 1.0)
    freedom = cells  # cells and the rare ones together, less one
    chi_square = torch.special.gammaincc(torch.tensor(freedom / 2.0), torch.tensor(statistic / 2))
    assert float(chi_square) > 1e-3, f"{statistic} with {freedom} degrees of freedom"


def _shares(pipeline: Pipeline) -> dict[tuple[int, ...], float]:
    """The probability of each answer."""
    shares: dict[tuple[int, ...], float] = {}
    for first, second in product(range(5), repeat=2):
        laws = [pipeline.frame(0, [*_PROMPT, *text]).softmax(0) for text in ((), (first,), (first, second))]
        for third in range(5):
            shares[first, second, third] = float(laws[0][first] * laws[1][second] * laws[2][third])
    assert sum(shares.values()) == pytest.approx(1, abs=1e-4)
    return shares
