"""Several drafts at one position: the tokens of plain decoding, but for near-ties of the logits.

What is bounded, and why, is said in `test_draft_then_verify`: kernels see several rows, and may round otherwise.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from speculation.decisions.drafts.tree import Draft
from speculation.decisions.shapes.chooser import Shapes
from speculation.drafters.base import Answer, Drafter
from speculation.drafters.forced import ForcedDrafter
from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.none import NoDrafter
from tests.harness import LocalEngine, local_engine
from tests.model.identity import recorded_logits
from tests.model.joint_law import check_joint_law
from tests.model.test_draft_then_verify import GREEDY, differs, run
from tests.model.test_grammar_pipeline import GRAMMAR
from tests.model.test_pipeline import EVERYTHING, NEW, PROMPT
from workers.shared.frames import Shape
from workers.shared.grammar import Grammars
from workers.shared.messages import Sampling
from workers.shared.model_files.end_tokens import read_end_tokens

Rank = Callable[[int], int | None]  # of the right token among the candidates for a position; None: it is missing

# Of which many stand for themselves: right drafts in scratch two in a row, before a miss, behind a miss, deep in a
# frame; and a miss at every place.
RANKS: dict[str, Rank] = {
    "first": lambda position: 0,
    "second": lambda position: 1,
    "none": lambda position: None,
    "pattern": lambda position: (1, 1, None, 0, 1, None, 1, 0, 0, None, None, 1, 2)[position % 13],
    "scattered": lambda position: random.Random(position).choice([0, 0, 1, 1, 2, 3, None]),
}


class BushyDrafter(Drafter):
    """Knows the text, and which candidate is the right one; behind a wrong draft it makes candidates up."""

    def __init__(self, text: Sequence[int], vocab_size: int, rank: Rank) -> None:
        self._text = list(text)
        self._vocab_size = vocab_size
        self._rank = rank

    def draft(self, tokens: Sequence[int]) -> Answer:
        position = len(tokens)
        if position >= len(self._text):
            return None
        known = list(tokens) == self._text[:position]
        right, rank = self._text[position], self._rank(position) if known else None
        candidates = [(right + 1 + place) % self._vocab_size for place in range(8)]
        if rank is not None:
            candidates[rank] = right
        least = 0.1 if known else 0.001
        chances = tuple(least - 0.0001 * place for place in range(8))
        return Draft(tuple(candidates), chances=chances)


SHAPES = [
    ((8,), {"tree_width": 3, "tokens_per_frame": 4}),
    ((4, 4), {"tree_width": 2}),
    ((3, 3, 2), {"tree_width": 8, "tokens_per_frame": 2}),
    ((2, 2, 2, 2, 0), {"tree_width": 4, "delta": 1}),
    ((4, 4), {"tree_width": 3, "drafts": 3}),
]


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def engine(request: pytest.FixtureRequest, shallow_model: Path) -> Iterator[LocalEngine]:
    split, settings = request.param
    with (
        recorded_logits(),
        local_engine(shallow_model, split, max_model_len=512, prefill_chunk=64, **settings) as running,
    ):
        yield running


@pytest.mark.parametrize("sampling", [GREEDY, EVERYTHING], ids=["greedy", "everything"])
def test_tokens_are_those_of_plain_decoding(engine: LocalEngine, sampling: Sampling) -> None:
    plain = run(engine, NoDrafter(), sampling, PROMPT, NEW)
    text = PROMPT + plain[0].tokens
    for name, rank in RANKS.items():
        other = run(engine, BushyDrafter(text, engine.vocab_size, rank), sampling, PROMPT, NEW)
        assert not differs(sampling, plain, other, PROMPT), "this model has no near-ties here"
        assert len(other[0].logprobs) == (0 if sampling.logprobs is None else NEW), name
        counts = other[0].counts
        assert counts is not None
        assert counts.drafted == counts.accepted + counts.rejected + counts.discarded
        assert counts.sent <= counts.drafted
        assert (counts.moved > 0) == (name in ("second", "pattern", "scattered")), name
        if name == "second":
            assert (counts.rejected, counts.moved) == (0, counts.accepted)


def test_tokens_are_those_of_plain_decoding_with_all_that_lookup_finds(engine: LocalEngine) -> None:
    prompt = [40, 41, 42, 40, 41, 43, 40, 41, 44, 40, 41]
    few = dict.fromkeys(range(40, 46), 50.0)  # tokens, so that there is something to find
    for temperature in (0.0, 1.0):
        sampling = Sampling(seed=4, temperature=temperature, repetition_penalty=1.1, logit_bias=few)
        plain = run(engine, NoDrafter(), sampling, prompt, NEW)
        lookup = NgramDrafter(4, 1, engine.config.tree_width)
        other = run(engine, lookup, sampling, prompt, NEW)
        assert not differs(sampling, plain, other, prompt), "this model has no near-ties here"
        assert other[0].counts is not None
        assert other[0].counts.accepted > 0
        assert other[0].counts.sent > other[0].counts.accepted + other[0].counts.rejected, "nothing has branched"


def test_stops_limits_and_aborts_anywhere_in_a_tree(engine: LocalEngine) -> None:
    plain, _ = run(engine, NoDrafter(), GREEDY, PROMPT, NEW)
    engine.drafting.use(BushyDrafter(PROMPT + plain.tokens, engine.vocab_size, RANKS["pattern"]))
    for after in range(1, 11):
        stop = plain.tokens[after]
        end = plain.tokens.index(stop) + 1
        stopped = engine.client.generate(PROMPT, NEW, stop_tokens=[stop])
        assert (stopped.tokens, stopped.finish) == (plain.tokens[:end], "stop")
        limited = engine.client.generate(PROMPT, after)
        assert (limited.tokens, limited.finish) == (plain.tokens[:after], "length")
        identifier = engine.client.send(PROMPT, 300)
        assert engine.client.result(identifier, abort_after=after).finish == "abort"
    assert engine.client.generate(PROMPT, NEW).tokens == plain.tokens


def test_a_grammar_follows_the_walk(engine: LocalEngine, shallow_model: Path) -> None:
    sampling = Sampling(seed=3, temperature=1.0, repetition_penalty=1.1, grammar=GRAMMAR)
    stops = sorted(read_end_tokens(shallow_model))
    engine.drafting.use(NoDrafter())
    plain = engine.client.generate(PROMPT, 200, sampling, stops)
    assert plain.finish == "stop"
    bushy = BushyDrafter(PROMPT + plain.tokens, engine.vocab_size, RANKS["scattered"])
    for candidate in (bushy, ForcedDrafter(bushy, Grammars(shallow_model))):
        engine.drafting.use(candidate)
        result = engine.client.generate(PROMPT, 200, sampling, stops)
        assert (result.tokens, result.finish) == (plain.tokens, "stop")


def test_requests_side_by_side_get_the_tokens_that_each_gets_alone(engine: LocalEngine) -> None:
    engine.drafting.use(lambda slot: NgramDrafter(4, 1, engine.config.tree_width))
    samplings = [msgspec.structs.replace(EVERYTHING, seed=seed) for seed in range(6)]
    alone = [engine.client.generate(PROMPT, 20, sampling).tokens for sampling in samplings]
    sent = [engine.client.send(PROMPT, 20, sampling) for sampling in samplings]
    together = engine.client.results(dict.fromkeys(sent))
    assert [together[identifier].tokens for identifier in sent] == alone


@pytest.mark.parametrize(
    "shape", [{"tree_width": 3, "max_num_seqs": 1}, {"tree_width": 3, "tokens_per_frame": 2}], ids=str
)
def test_three_tokens_have_the_joint_law_of_the_model(tmp_path: Path, shape: dict[str, int]) -> None:
    check_joint_law(tmp_path / "five", lambda slot: NgramDrafter(2, 1, 3), **shape)


def test_shapes_that_change_in_the_midst_of_a_request_change_no_token(
    shallow_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_model_len": 512, "prefill_chunk": 64, "tokens_per_frame": "auto", "tree_width": "auto"}
    rng, taken = random.Random(3), set[Shape]()
    with (
        recorded_logits(),
        local_engine(shallow_model, (4, 4), **settings) as running,
        pytest.MonkeyPatch.context() as patch,
    ):

        def anything(self: Shapes) -> Shape:
            self.current = rng.choice(running.config.shapes)
            taken.add(self.current)
            return self.current

        patch.setattr(Shapes, "_choose", anything)
        plain = run(running, NoDrafter(), GREEDY, PROMPT, NEW)
        for name in ("second", "pattern", "scattered"):
            bushy = BushyDrafter(PROMPT + plain[0].tokens, running.vocab_size, RANKS[name])
            assert not differs(GREEDY, plain, run(running, bushy, GREEDY, PROMPT, NEW), PROMPT), name
    assert {shape.breadth for shape in taken} == {shape.width for shape in taken} == {1, 2, 4, 8}
