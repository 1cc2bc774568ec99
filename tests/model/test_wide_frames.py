"""Frames of several tokens in every stage: the tokens of plain decoding, but for near-ties of the logits.

What is bounded, and why, is said in `test_draft_then_verify`: kernels see several rows, and may round otherwise.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from speculation.decisions.policy import pipelined
from speculation.drafters.forced import ForcedDrafter
from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.none import NoDrafter
from tests.harness import LocalEngine, local_engine
from tests.model.identity import drafters, recorded_logits
from tests.model.joint_law import check_joint_law
from tests.model.test_draft_then_verify import GREEDY, differs, run
from tests.model.test_grammar_pipeline import GRAMMAR
from tests.model.test_pipeline import EVERYTHING, NEW, PROMPT
from workers.shared.emulation import Emulation
from workers.shared.grammar import Grammars
from workers.shared.messages import Sampling
from workers.shared.model_files.end_tokens import read_end_tokens


@pytest.fixture(scope="module", params=[((4, 4), 4), ((2, 2, 2, 2, 0), 2), ((3, 3, 2), 8)], ids=str)
def engine(request: pytest.FixtureRequest, shallow_model: Path) -> Iterator[LocalEngine]:
    split, width = request.param
    with (
        recorded_logits(),
        local_engine(shallow_model, split, tokens_per_frame=width, max_model_len=512, prefill_chunk=64) as running,
    ):
        yield running


@pytest.mark.parametrize("sampling", [GREEDY, EVERYTHING], ids=["greedy", "everything"])
def test_tokens_are_those_of_plain_decoding(engine: LocalEngine, sampling: Sampling) -> None:
    plain = run(engine, NoDrafter(), sampling, PROMPT, NEW)
    for name, drafter in drafters(PROMPT + plain[0].tokens, engine.vocab_size).items():
        other = run(engine, drafter, sampling, PROMPT, NEW)
        assert not differs(sampling, plain, other, PROMPT), "this model has no near-ties here"
        assert len(other[0].logprobs) == (0 if sampling.logprobs is None else NEW), name
        counts = other[0].counts
        assert counts is not None
        assert counts.drafted == counts.accepted + counts.rejected + counts.discarded


def test_right_drafts_travel_together(engine: LocalEngine) -> None:
    plain, _ = run(engine, NoDrafter(), GREEDY, PROMPT, NEW)
    by_name = drafters(PROMPT + plain.tokens, engine.vocab_size)
    right = run(engine, by_name["right"], GREEDY, PROMPT, NEW)[0].counts
    assert right is not None
    assert right.rejected == 0
    frames = -(-(NEW - 1) // engine.config.tokens_per_frame)
    assert len(engine.split) - 1 + frames <= right.cycles <= len(engine.split) * frames


def test_stops_limits_and_aborts_anywhere_in_a_frame(engine: LocalEngine) -> None:
    plain, _ = run(engine, NoDrafter(), GREEDY, PROMPT, NEW)
    by_name = drafters(PROMPT + plain.tokens, engine.vocab_size)
    for after in range(1, 11):
        stop = plain.tokens[after]
        end = plain.tokens.index(stop) + 1
        engine.drafting.use(by_name["half right" if after % 2 else "right"])
        stopped = engine.client.generate(PROMPT, NEW, stop_tokens=[stop])
        assert (stopped.tokens, stopped.finish) == (plain.tokens[:end], "stop")
        limited = engine.client.generate(PROMPT, after)
        assert (limited.tokens, limited.finish) == (plain.tokens[:after], "length")
        identifier = engine.client.send(PROMPT, 300)
        assert engine.client.result(identifier, abort_after=after).finish == "abort"
    assert run(engine, by_name["right"], GREEDY, PROMPT, NEW)[0].tokens == plain.tokens


def test_a_grammar_holds_at_every_row_of_a_frame(engine: LocalEngine, shallow_model: Path) -> None:
    sampling = Sampling(seed=3, temperature=1.0, repetition_penalty=1.1, grammar=GRAMMAR)
    stops = sorted(read_end_tokens(shallow_model))
    engine.drafting.use(NoDrafter())
    plain = engine.client.generate(PROMPT, 200, sampling, stops)
    assert plain.finish == "stop"
    half_right = drafters(PROMPT + plain.tokens, engine.vocab_size)["half right"]
    for candidate in (half_right, ForcedDrafter(half_right, Grammars(shallow_model))):
        engine.drafting.use(candidate)
        result = engine.client.generate(PROMPT, 200, sampling, stops)
        assert (result.tokens, result.finish) == (plain.tokens, "stop")


def test_requests_side_by_side_get_the_tokens_that_each_gets_alone(engine: LocalEngine) -> None:
    engine.drafting.use(lambda slot: NgramDrafter(4, 1))
    samplings = [msgspec.structs.replace(EVERYTHING, seed=seed) for seed in range(6)]
    alone = [engine.client.generate(PROMPT, 20, sampling).tokens for sampling in samplings]
    sent = [engine.client.send(PROMPT, 20, sampling) for sampling in samplings]
    together = engine.client.results(dict.fromkeys(sent))
    assert [together[identifier].tokens for identifier in sent] == alone


def test_three_tokens_have_the_joint_law_of_the_model(tmp_path: Path) -> None:
    check_joint_law(tmp_path / "five", lambda slot: NgramDrafter(2, 1), tokens_per_frame=3)


def test_the_policy_is_the_pipelines(engine: LocalEngine) -> None:
    schedule = engine.engine._streams[0].schedule
    assert schedule.policy == pipelined(len(engine.split), 0, engine.config.tokens_per_frame)


def test_frames_are_as_wide_as_is_fastest_and_tokens_stay_the_same(shallow_model: Path) -> None:
    emulate = Emulation(stage_ms=20)
    settings = {"max_model_len": 512, "prefill_chunk": 64, "tokens_per_frame": "auto", "emulate": emulate}
    with recorded_logits(), local_engine(shallow_model, (4, 4), **settings) as running:
        plain = run(running, NoDrafter(), GREEDY, PROMPT, NEW)
        right = drafters(PROMPT + plain[0].tokens, running.vocab_size)["right"]
        assert not differs(GREEDY, plain, run(running, right, GREEDY, PROMPT, NEW), PROMPT)
        assert max(stream.schedule.shape.width for stream in running.engine._streams) > 1
        wrong = drafters(PROMPT + plain[0].tokens, running.vocab_size)["wrong"]
        assert not differs(GREEDY, plain, run(running, wrong, GREEDY, PROMPT, NEW), PROMPT)
