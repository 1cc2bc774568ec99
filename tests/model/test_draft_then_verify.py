"""Draft-then-verify in a running engine: the tokens of plain decoding, but for near-ties of the logits.

A frame of several tokens goes through matrix products of other shapes than plain decoding, which may round otherwise.
So what is shown here is, first, that every logit of such a run is within a bound of plain decoding's; and second, that
where the tokens differ, plain decoding's own logits of the two are closer than twice that bound.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from speculation.drafters.base import Drafter
from speculation.drafters.forced import ForcedDrafter
from speculation.drafters.none import NoDrafter
from tests.harness import LocalEngine, Result, local_engine
from tests.model.identity import Logits, RecordingSampler, drafters, recorded_logits
from tests.model.test_grammar_pipeline import GRAMMAR
from tests.model.test_pipeline import EVERYTHING, NEW, PROMPT
from workers.sampling.history import History
from workers.sampling.sampler import Sampler
from workers.shared.grammar import Grammars
from workers.shared.messages import Sampling
from workers.shared.model_files.end_tokens import read_end_tokens

# Of the largest logit, 6e-5: rounding errors of float32 on their way through some dozens of layers and the cache.
NEAR = 512 * torch.finfo(torch.float32).eps
# Packed weights are multiplied with rows in bfloat16, in which a last bit of float32 can become a step of its own.
PACKED_NEAR = 2 * torch.finfo(torch.bfloat16).eps
GREEDY = Sampling(seed=0, temperature=0)


@pytest.fixture(scope="module", params=[((8,), 1), ((4, 4), 3), ((2, 2, 2, 2, 0), 8)], ids=str)
def engine(request: pytest.FixtureRequest, shallow_model: Path) -> Iterator[LocalEngine]:
    split, drafts = request.param
    with (
        recorded_logits(),
        local_engine(shallow_model, split, drafts=drafts, max_model_len=512, prefill_chunk=64) as running,
    ):
        yield running


def run(
    engine: LocalEngine, drafter: Drafter, sampling: Sampling, prompt: list[int], new: int
) -> tuple[Result, Logits]:
    engine.drafting.use(drafter)
    RecordingSampler.forget()
    result = engine.client.generate(prompt, new, sampling)
    return result, RecordingSampler.seen


def differs(
    sampling: Sampling,
    plain: tuple[Result, Logits],
    other: tuple[Result, Logits],
    prompt: list[int],
    near: float = NEAR,
) -> bool:
    """Whether the tokens differ somewhere; fails where the logits do, or where that is not at a near-tie."""
    sampler = Sampler(len(next(iter(plain[1].values()))), torch.device("cpu"))
    for place, (token, expected) in enumerate(zip(other[0].tokens, plain[0].tokens, strict=True)):
        position = len(prompt) + place
        logits = plain[1][position]
        bound = near * float(logits.abs().max())
        assert (other[1][position] - logits).abs().max() <= bound, position
        if token != expected:
            history = History(len(prompt), sampling, [*prompt, *plain[0].tokens[:place]])
            shaped = sampler.shape(logits, sampling, history)
            scores = sampler.perturb(shaped, sampling, position)
            assert scores[expected] - scores[token] <= 2 * bound, position
            return True
    return False


def check_identity(engine: LocalEngine, sampling: Sampling, prompt: list[int], new: int, near: float = NEAR) -> int:
    """Checks every drafter against plain decoding; returns how many outputs differ somewhere."""
    plain = run(engine, NoDrafter(), sampling, prompt, new)
    different = 0
    for name, drafter in drafters(prompt + plain[0].tokens, engine.vocab_size).items():
        other = run(engine, drafter, sampling, prompt, new)
        assert len(other[0].tokens) == new, name
        assert len(other[0].logprobs) == (0 if sampling.logprobs is None else new), name
        different += differs(sampling, plain, other, prompt, near)
        counts = other[0].counts
        assert counts is not None
        assert counts.drafted == counts.accepted + counts.rejected + counts.discarded
        assert counts.cycles % len(engine.split) == 0
    return different


@pytest.mark.parametrize("sampling", [GREEDY, EVERYTHING], ids=["greedy", "everything"])
def test_tokens_are_those_of_plain_decoding(engine: LocalEngine, sampling: Sampling) -> None:
    assert check_identity(engine, sampling, PROMPT, NEW) == 0, "this model has no near-ties here"


def test_where_two_tokens_tie_the_difference_is_between_them(engine: LocalEngine) -> None:
    _, logits = run(engine, NoDrafter(), GREEDY, PROMPT, NEW)
    for position in range(len(PROMPT) + 3, len(PROMPT) + NEW, 5):
        (best, second), (_, other) = logits[position].topk(2)
        tied = Sampling(seed=0, temperature=0, logit_bias={int(other): float(best - second)})
        reference = run(engine, NoDrafter(), tied, PROMPT, NEW)
        right = drafters(PROMPT + reference[0].tokens, engine.vocab_size)["right"]
        differs(tied, reference, run(engine, right, tied, PROMPT, NEW), PROMPT)


def test_right_drafts_fill_every_round_and_wrong_ones_cost_one_token_each(engine: LocalEngine) -> None:
    plain, _ = run(engine, NoDrafter(), GREEDY, PROMPT, NEW)
    by_name = drafters(PROMPT + plain.tokens, engine.vocab_size)
    stages, drafts = len(engine.split), engine.engine._config.drafter.num_speculative_tokens
    right = run(engine, by_name["right"], GREEDY, PROMPT, NEW)[0].counts
    wrong = run(engine, by_name["wrong"], GREEDY, PROMPT, NEW)[0].counts
    assert right is not None
    assert wrong is not None
    assert right.cycles == stages * -(-(NEW - 1) // (drafts + 1))
    assert wrong.cycles == stages * (NEW - 1)
    assert (right.rejected, wrong.accepted) == (0, 0)
    assert right.ranked == right.accepted
    assert wrong.ranked == wrong.rejected


def test_stops_limits_and_aborts_anywhere_in_a_round(engine: LocalEngine) -> None:
    plain, _ = run(engine, NoDrafter(), GREEDY, PROMPT, NEW)
    by_name = drafters(PROMPT + plain.tokens, engine.vocab_size)
    for after in range(1, 11):
        stop = plain.tokens[after]
        end = plain.tokens.index(stop) + 1
        for name in ("right", "half right"):
            engine.drafting.use(by_name[name])
            stopped = engine.client.generate(PROMPT, NEW, stop_tokens=[stop])
            assert (stopped.tokens, stopped.finish) == (plain.tokens[:end], "stop"), name
            limited = engine.client.generate(PROMPT, after)
            assert (limited.tokens, limited.finish) == (plain.tokens[:after], "length"), name
            identifier = engine.client.send(PROMPT[::-1] * 20, 200)
            engine.client.abort(identifier)
            assert engine.client.result(identifier).finish == "abort"
            identifier = engine.client.send(PROMPT, 300)
            assert engine.client.result(identifier, abort_after=after).finish == "abort"


def test_a_grammar_holds_at_every_row_of_a_frame(engine: LocalEngine, shallow_model: Path) -> None:
    sampling = Sampling(seed=3, temperature=1.0, repetition_penalty=1.1, grammar=GRAMMAR)
    stops = sorted(read_end_tokens(shallow_model))
    engine.drafting.use(NoDrafter())
    plain = engine.client.generate(PROMPT, 200, sampling, stops)
    assert plain.finish == "stop"
    grammars = Grammars(shallow_model)
    for name, drafter in drafters(PROMPT + plain.tokens, engine.vocab_size).items():
        for candidate in (drafter, ForcedDrafter(drafter, grammars)):
            engine.drafting.use(candidate)
            result = engine.client.generate(PROMPT, 200, sampling, stops)
            assert (result.tokens, result.finish) == (plain.tokens, "stop"), name


def test_a_grammar_that_fails_in_the_stage_ends_the_request_alone(engine: LocalEngine) -> None:
    engine.drafting.use(NoDrafter())
    failed = engine.client.generate(PROMPT, 9, Sampling(seed=0, grammar="start: nothing"))
    assert failed.error is not None
    assert len(engine.client.generate(PROMPT, 5).tokens) == 5


@pytest.mark.timeout(300)
def test_the_default_model(default_model: Path) -> None:
    prompt = list(range(1000, 1040))
    with recorded_logits(), local_engine(default_model, (20, 10), drafts=5, max_model_len=128) as running:
        for sampling in (GREEDY, Sampling(seed=5)):
            check_identity(running, sampling, prompt, 13, PACKED_NEAR)
