"""A request that is sent again with what was generated goes on exactly as if nothing had been: tokens and logprobs."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from speculation.drafters.base import Drafter
from speculation.drafters.none import NoDrafter
from tests.harness import LocalEngine, Result, local_engine
from tests.model.identity import drafters
from workers.shared.messages import Sampling

PROMPT = [40 + place % 5 for place in range(83)]  # a whole chunk and a part of one
NEW = 24
SAMPLINGS = {
    "greedy": Sampling(seed=0, temperature=0, logprobs=2),
    "seeded": Sampling(seed=7, temperature=1.3, top_p=0.9, logprobs=2),
    "penalised": Sampling(
        seed=3,
        presence_penalty=1.0,
        frequency_penalty=0.7,
        repetition_penalty=1.2,
        min_tokens=9,
        end_tokens=(2,),
        logprobs=1,
    ),
    "restricted": Sampling(seed=5, temperature=1.0, grammar=r"start: /([a-z]+ [0-9]+, ){20}/", logprobs=1),
}


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[LocalEngine]:
    with local_engine(tiny_model, (6, 5, 5), max_model_len=1024, prefill_chunk=64) as running:
        yield running


def generate(engine: LocalEngine, drafter: Drafter, sampling: Sampling, generated: list[int]) -> Result:
    engine.drafting.use(drafter)
    return engine.client.result(engine.client.send(PROMPT, NEW, sampling, generated=generated))


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_the_rest_is_the_same_bits_wherever_it_was_cut_off(engine: LocalEngine, kind: str) -> None:
    sampling = SAMPLINGS[kind]
    whole = generate(engine, NoDrafter(), sampling, [])
    assert (len(whole.tokens), len(whole.logprobs), whole.error) == (NEW, NEW, None)
    known = drafters(PROMPT + whole.tokens, engine.vocab_size)
    for name in ("none", "half right"):
        for cut in (0, random.Random(kind).randrange(2, NEW - 1), NEW - 1):
            rest = generate(engine, known[name], sampling, whole.tokens[:cut])
            assert rest.tokens == whole.tokens[cut:], (name, cut)
            assert rest.logprobs == whole.logprobs[cut:], (name, cut)
            assert rest.finish == whole.finish
