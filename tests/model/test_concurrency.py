"""Requests that run side by side: each gets what it would get alone, to the last bit of its log-probabilities.

One mixture of requests (prompts that share beginnings, lengths, temperatures, seeds, penalties, a grammar, stops and
aborts) is first served one by one, without drafts; then in crowds of several sizes, with every kind of drafter.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from transformers import AutoConfig

from speculation.drafters.base import Drafter, Maker
from speculation.drafters.forced import ForcedDrafter
from speculation.drafters.load_model import load as load_model
from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.none import NoDrafter
from speculation.drafters.pdm import PdmDrafter
from speculation.drafters.scripted import Recording, Script, ScriptedDrafter
from speculation.pdm.runtime import DraftRuntime
from speculation.pdm.target import read_head, read_tensor
from tests.harness import Client, LocalEngine, Result, local_engine
from tests.model.pdm.modules import random_module
from tests.model.test_grammar_pipeline import GRAMMAR
from tests.model.test_pipeline import EVERYTHING
from workers.shared.config import DrafterConfig
from workers.shared.grammar import Grammars
from workers.shared.messages import Sampling
from workers.shared.model_files.tensor_sizes import EMBEDDING

ANCHORS = (0, 1, 3, 4, 6)
SPLITS = [(4, 4), (2, 2, 2, 1, 1)]
SLOTS = 6
CONTEXT = 320
SHARED = [random.Random(1).randrange(30, 500) for _ in range(70)]


@dataclass(frozen=True)
class Asked:
    """One request of the mixture."""

    prompt: tuple[int, ...]
    new: int
    sampling: Sampling
    stop_after: int | None = None  # the token after which it is stopped, counted in what it says alone
    abort_after: int | None = None


def mixture() -> list[Asked]:
    """Sixteen requests."""
    made = []
    for number in range(16):
        rng = random.Random(number)
        own = [rng.randrange(30, 500) for _ in range(rng.choice((1, 3, 20, 64, 90)))]
        loop = [40, 41, 42] * 6 if number % 4 == 0 else []
        samplings = (
            Sampling(seed=number, temperature=0, logprobs=2),
            Sampling(seed=number, temperature=0.8, top_p=0.95, logprobs=1),
            EVERYTHING,
            Sampling(seed=number, temperature=0, logprobs=0, grammar=GRAMMAR)
            if number == 7
            else Sampling(seed=number, logprobs=1, repetition_penalty=1.3),
        )
        made.append(
            Asked(
                tuple((SHARED if number % 3 == 0 else []) + own + loop),
                rng.randrange(6, 24),
                samplings[number % 4],
                stop_after=4 if number % 5 == 4 else None,
                abort_after=rng.randrange(1, 5) if number in (5, 10) else None,
            )
        )
    return made


MIXTURE = mixture()


@pytest.fixture(scope="module", params=SPLITS, ids=str)
def engine(request: pytest.FixtureRequest, shallow_model: Path) -> Iterator[LocalEngine]:
    settings = {"max_model_len": CONTEXT, "prefill_chunk": 32, "max_num_seqs": SLOTS}
    with local_engine(shallow_model, request.param, ANCHORS[1:], **settings) as running:
        yield running


def send(client: Client, asked: Asked, alone: Result | None) -> str:
    stop = [] if alone is None or asked.stop_after is None else [alone.tokens[asked.stop_after]]
    return client.send(asked.prompt, asked.new, asked.sampling, stop)


@pytest.fixture(scope="module")
def alone(engine: LocalEngine) -> list[Result]:
    """What every request gets by itself, neither stopped nor aborted, without drafts."""
    engine.drafting.use(NoDrafter())
    results = [engine.client.result(send(engine.client, asked, None)) for asked in MIXTURE]
    assert all(result.error is None and len(result.logprobs) == len(result.tokens) for result in results)
    return results


def expected(asked: Asked, alone: Result) -> int:
    """Tokens of the request, were it not aborted."""
    return len(alone.tokens) if asked.stop_after is None else alone.tokens.index(alone.tokens[asked.stop_after]) + 1


@pytest.fixture(scope="module")
def makers(engine: LocalEngine, shallow_model: Path, alone: list[Result]) -> dict[str, Maker]:
    """Every kind of drafter, one a slot."""
    script = Script(
        [
            Recording([*asked.prompt, *result.tokens], wrong_probability=0.3)
            for asked, result in zip(MIXTURE, alone, strict=True)
        ]
    )
    module = random_module(AutoConfig.from_pretrained(shallow_model), anchors=ANCHORS)
    module.take_head(read_head(shallow_model).float())
    module.eval().requires_grad_(False)
    embedding, grammars = read_tensor(shallow_model, EMBEDDING).float(), Grammars(shallow_model)

    def pdm(_: int) -> Drafter:
        return PdmDrafter(DraftRuntime(module, engine.split, CONTEXT), embedding, module, CONTEXT)

    config = DrafterConfig("model", draft_model=str(shallow_model))
    draft_engine = msgspec.structs.replace(engine.config, drafter=config)
    bare: dict[str, Callable[[int], Drafter]] = {
        "model": load_model(draft_engine, engine.vocab_size),
        "none": lambda _: NoDrafter(),
        "ngram": lambda _: NgramDrafter(4, 1),
        "scripted": lambda _: ScriptedDrafter(script, engine.vocab_size),
        "pdm": pdm,
    }

    def forced(make: Maker) -> Maker:
        return lambda slot: ForcedDrafter(make(slot), grammars)

    return {name: forced(make) for name, make in bare.items()}


@pytest.mark.parametrize("drafter", ["none", "ngram", "scripted", "pdm", "model"])
def test_each_of_a_crowd_gets_what_it_gets_alone(
    engine: LocalEngine, alone: list[Result], makers: dict[str, Maker], drafter: str
) -> None:
    client, stages = engine.client, len(engine.split)
    engine.drafting.use(makers[drafter])
    order = list(range(len(MIXTURE)))
    random.Random(drafter).shuffle(order)
    for crowd in sorted({2, stages, 16}):
        chosen = order[-crowd:]
        sent = {number: send(client, MIXTURE[number], alone[number]) for number in chosen}
        results = client.results({sent[number]: MIXTURE[number].abort_after for number in chosen})
        for number in chosen:
            asked, whole, result = MIXTURE[number], alone[number], results[sent[number]]
            assert result.error is None
            count = len(result.tokens)
            if result.finish == "abort":
                assert asked.abort_after is not None
                assert asked.abort_after <= count <= expected(asked, whole)
            else:
                assert count == expected(asked, whole), (crowd, number)
            assert result.tokens == whole.tokens[:count], (crowd, number)
            assert result.logprobs == whole.logprobs[:count], (crowd, number)
            counts = result.counts
            assert counts is not None
            assert counts.drafted == counts.accepted + counts.rejected + counts.discarded
        order = order[1:] + order[:1]
    status = client.status()
    assert (status.running, status.waiting, sum(status.credits.values())) == (0, 0, 0)


@pytest.mark.parametrize("drafter", ["none", "pdm", "model"])
def test_a_prompt_that_several_requests_share_is_computed_once(
    engine: LocalEngine, makers: dict[str, Maker], drafter: str
) -> None:
    rng = random.Random(drafter)
    prompt = [rng.randrange(30, 500) for _ in range(100)]  # three chunks, and four tokens of which each makes its own
    asked = [(prompt, Sampling(seed=seed, logprobs=0)) for seed in range(3)]
    asked += [([*prompt[:70], 9, 9], Sampling(seed=3, logprobs=0))]  # two of the chunks
    engine.drafting.use(NoDrafter())
    alone = [engine.client.generate(prompt, 9, sampling) for prompt, sampling in asked]
    for _ in range(SLOTS):  # what is held of all this is overwritten
        engine.client.result(engine.client.send([rng.randrange(30, 500) for _ in range(120)], 1))
    engine.drafting.use(makers[drafter])
    before = engine.client.status()
    sent = [engine.client.send(prompt, 9, sampling) for prompt, sampling in asked]
    results = engine.client.results(dict.fromkeys(sent))
    after = engine.client.status()
    for whole, identifier in zip(alone, sent, strict=True):
        assert results[identifier].tokens == whole.tokens
        assert results[identifier].logprobs == whole.logprobs
    assert sorted(results[identifier].cached for identifier in sent) == [0, 64, 96, 96]
    assert after.stats.prefix_cache_hits - before.stats.prefix_cache_hits == 64 + 96 + 96
    if drafter == "none":
        computed = 100 + 4 + 4 + 8 + len(asked) * 8  # of the prompts, and of the answers all tokens but the last
        assert {now.tokens - then.tokens for now, then in zip(after.stages, before.stages, strict=True)} == {computed}


def test_requests_run_side_by_side_and_those_beyond_the_slots_wait(engine: LocalEngine) -> None:
    engine.drafting.use(NoDrafter())
    client = engine.client
    sent = [client.send([50 + number], CONTEXT - 1) for number in range(SLOTS + 2)]
    begun: set[str] = set()
    while len(begun) < SLOTS:
        message = client.receive()
        assert hasattr(message, "tokens"), "none ends before all have begun"
        assert message.finish is None
        begun.add(message.id)
    assert begun == set(sent[:SLOTS]), "first come, first served"
    status = client.status()
    assert (status.running, status.waiting) == (SLOTS, 2)
    assert 0 < sum(status.credits.values()) <= len(engine.split)
    assert status.credits["draft"] == 0
    for identifier in reversed(sent):
        client.abort(identifier)
    while (status := client.status()).running or status.waiting:
        pass


def test_a_long_prompt_does_not_stop_the_others(engine: LocalEngine) -> None:
    engine.drafting.use(NoDrafter())
    client = engine.client
    running = client.send([60], 200)
    while not hasattr(client.receive(), "tokens"):
        pass
    prompt = client.send([61] * (CONTEXT - 1), 1)
    between = 0
    while True:
        message = client.receive()
        assert hasattr(message, "tokens")
        if message.id == prompt:
            break
        assert message.finish is None, "the prompt takes longer than 200 tokens of the other request"
        between += len(message.tokens)
    client.abort(running)
    assert client.result(running).finish == "abort"
    # Ten chunks; while they go through, at least as many frames of the other request must.
    assert between >= 5


@pytest.mark.parametrize(
    "changes", [{"drafts": 3}, {"kv_cache_dtype": "fp8_e4m3"}], ids=["draft-then-verify", "eight bits"]
)
def test_a_crowd_short_of_memory_gets_what_each_gets_alone(shallow_model: Path, changes: dict[str, Any]) -> None:
    """In rounds of drafts, frames round otherwise than plain decoding's, and all alike: no bit differs."""
    most = CONTEXT + 50
    settings = {"max_model_len": CONTEXT, "prefill_chunk": 32, "max_num_seqs": SLOTS, "max_total_tokens": most}
    with local_engine(shallow_model, (4, 4), **settings, **changes) as engine:
        client = engine.client
        engine.drafting.use(NgramDrafter(4, 1) if "drafts" in changes else NoDrafter())
        whole = [client.result(send(client, asked, None)) for asked in MIXTURE]
        engine.drafting.use(lambda _: NgramDrafter(4, 1))
        sent = [send(client, asked, alone) for asked, alone in zip(MIXTURE, whole, strict=True)]
        results = client.results({one: asked.abort_after for one, asked in zip(sent, MIXTURE, strict=True)})
        for asked, alone, identifier in zip(MIXTURE, whole, sent, strict=True):
            result = results[identifier]
            count = len(result.tokens)
            assert result.error is None
            assert result.finish == "abort" or count == expected(asked, alone)
            assert result.tokens == alone.tokens[:count]
            assert result.logprobs == alone.logprobs[:count]
        assert client.status().kv.total == most
        assert 0 < client.status().kv.kept <= most
        longest = client.send([60] * (CONTEXT - 1), 1)  # for which all that is kept must go
        assert client.result(longest).finish == "length"
        assert client.status().kv.kept <= CONTEXT
