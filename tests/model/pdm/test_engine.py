"""The draft module inside a running engine: it never changes a token, and what it drafts never depends on timing."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from speculation.drafters.base import Answer, Draft, Drafter
from speculation.drafters.combined import CombinedDrafter
from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.none import NoDrafter
from speculation.drafters.pdm import PdmDrafter
from speculation.pdm.module import DraftModule
from speculation.pdm.runtime import DraftRuntime
from speculation.pdm.target import read_head, read_tensor
from tests.harness import LocalEngine, local_engine
from tests.model.identity import RecordingSampler, recorded_logits
from tests.model.pdm.modules import random_module
from workers.shared.emulation import Emulation
from workers.shared.messages import Sampling
from workers.shared.model_files.tensor_sizes import EMBEDDING

ANCHORS = (0, 1, 3, 4, 6)
SPLITS = [(4, 4), (1, 1, 2, 2, 2), (6, 2, 0)]
PROMPT = [40, 41, 42, 40, 41, 42, 40, 41] * 10
NEW = 24
CAPACITY = 512
SLOTS = 2


class RecordedPdm(PdmDrafter):
    """Remembers its drafts by the first position of the epoch and the number of tokens before the draft."""

    def __init__(
        self, module: DraftModule, embedding: torch.Tensor, split: tuple[int, ...], width: int, scratch: int
    ) -> None:
        runtime = DraftRuntime(module, split, CAPACITY, width, scratch)
        super().__init__(runtime, embedding, module, CAPACITY, branches=scratch > 0)
        self.drafts: dict[tuple[int, tuple[int, ...]], Draft] = {}

    def draft(self, tokens: Sequence[int]) -> Answer:
        draft = super().draft(tokens)
        if isinstance(draft, Draft):
            self.drafts[self._origin(), tuple(tokens)] = draft
        return draft


@pytest.fixture(scope="module")
def module(shallow_model: Path) -> DraftModule:
    """A random module with the target's own head, so that some of its drafts are right."""
    made = random_module(AutoConfig.from_pretrained(shallow_model), anchors=ANCHORS)
    made.take_head(read_head(shallow_model).float())
    return made.eval().requires_grad_(False)


@pytest.fixture(scope="module", params=SPLITS, ids=str)
def split(request: pytest.FixtureRequest) -> tuple[int, ...]:
    chosen: tuple[int, ...] = request.param
    return chosen


@pytest.fixture(scope="module")
def engine(split: tuple[int, ...], shallow_model: Path) -> Iterator[LocalEngine]:
    settings = {"max_model_len": CAPACITY, "prefill_chunk": 64, "max_num_seqs": SLOTS}
    with recorded_logits(), local_engine(shallow_model, split, ANCHORS[1:], **settings) as running:
        yield running


class Recorded:
    """Makes the drafters of all slots, and knows the one that has drafted most."""

    def __init__(
        self, module: DraftModule, shallow_model: Path, split: tuple[int, ...], width: int, scratch: int
    ) -> None:
        embedding = read_tensor(shallow_model, EMBEDDING).float()
        self._made = [RecordedPdm(module, embedding, split, width, scratch) for _ in range(SLOTS)]

    def __call__(self, slot: int) -> RecordedPdm:
        return self._made[slot]

    @property
    def busiest(self) -> RecordedPdm:
        return max(self._made, key=lambda drafter: len(drafter.drafts))


def drafter(
    module: DraftModule, shallow_model: Path, split: tuple[int, ...], width: int = 1, scratch: int = 0
) -> Recorded:
    return Recorded(module, shallow_model, split, width, scratch)


@pytest.mark.parametrize("sampling", [Sampling(seed=0, temperature=0), Sampling(seed=3, top_k=200, top_p=0.9)])
def test_tokens_and_logits_are_those_of_plain_decoding(
    engine: LocalEngine, module: DraftModule, shallow_model: Path, split: tuple[int, ...], sampling: Sampling
) -> None:
    engine.drafting.use(NoDrafter())
    RecordingSampler.forget()
    plain = engine.client.generate(PROMPT, NEW, sampling)
    logits = RecordingSampler.seen
    pdm = drafter(module, shallow_model, split)

    def combined(slot: int) -> Drafter:
        return CombinedDrafter(pdm(slot), NgramDrafter(6, 1), module_delays_stages=True)

    for candidate in (pdm, combined):
        engine.drafting.use(candidate)
        for _ in range(2):
            RecordingSampler.forget()
            result = engine.client.generate(PROMPT, NEW, sampling)
            assert result.tokens == plain.tokens
            assert all(torch.equal(RecordingSampler.seen[position], row) for position, row in logits.items())
            counts = result.counts
            assert counts is not None
            assert counts.drafted == counts.accepted + counts.rejected + counts.discarded > 0


def test_drafts_do_not_depend_on_timing(
    engine: LocalEngine, module: DraftModule, shallow_model: Path, split: tuple[int, ...]
) -> None:
    first, second = drafter(module, shallow_model, split), drafter(module, shallow_model, split)
    engine.drafting.use(first)
    engine.client.generate(PROMPT, NEW)
    settings = {
        "max_model_len": CAPACITY,
        "prefill_chunk": 64,
        "max_num_seqs": SLOTS,
        "emulate": Emulation(stage_ms=4.0),
        "delta": 1,
    }
    with local_engine(shallow_model, split, ANCHORS[1:], **settings) as slow:
        slow.drafting.use(second)
        slow.client.generate(PROMPT, NEW)
    one, other = first.busiest.drafts, second.busiest.drafts
    both = one.keys() & other.keys()
    assert len(both) > NEW / 3  # on a busy machine some are asked for too late
    for key in both:
        # Rows may be computed in other company, which moves the last bits of a float.
        assert one[key].candidates == other[key].candidates, key
        assert one[key].confidence == pytest.approx(other[key].confidence, rel=1e-3), key


def test_a_draft_is_the_one_of_a_pass_over_the_whole_text(
    engine: LocalEngine, module: DraftModule, shallow_model: Path, split: tuple[int, ...]
) -> None:
    pdm = drafter(module, shallow_model, split)
    engine.drafting.use(pdm)
    text = PROMPT + engine.client.generate(PROMPT, NEW).tokens
    engine.client.status()  # a ping through all stages: every tap of the request has arrived
    checked = 0
    used = pdm.busiest
    for (origin, tokens), draft in used.drafts.items():
        newest = len(tokens) - 1
        # Anchors of rejected drafts have been overwritten: only what became the text can be computed again.
        if list(tokens) == text[: len(tokens)] and newest < used._filled(len(split)):
            fresh = DraftRuntime(module, split, CAPACITY)
            logits = fresh.draft(fresh.plan(origin, newest), used._taps.states[: newest + 1])
            assert draft.token == int(logits.argmax()), (origin, newest)
            checked += 1
    assert checked > NEW / 3


@pytest.mark.parametrize("width", [2, 4])
def test_frames_of_several_tokens_are_filled_and_their_drafts_do_not_depend_on_timing(
    module: DraftModule, shallow_model: Path, split: tuple[int, ...], width: int
) -> None:
    sampling = Sampling(seed=3, top_k=200, top_p=0.9)
    settings = {"max_model_len": CAPACITY, "prefill_chunk": 64, "max_num_seqs": SLOTS, "tokens_per_frame": width}
    with local_engine(shallow_model, split, ANCHORS[1:], **settings) as wide:
        plain = wide.client.generate(PROMPT, NEW, sampling)
        pdm = drafter(module, shallow_model, split, width)
        wide.drafting.use(pdm)
        for _ in range(2):
            result = wide.client.generate(PROMPT, NEW, sampling)
            assert result.tokens == plain.tokens
            assert result.counts is not None
            assert result.counts.drafted > NEW  # a random module: most are wrong
        for slot in range(SLOTS):
            pdm(slot).drafts.clear()
        text = PROMPT + wide.client.generate(PROMPT, NEW).tokens
        wide.client.status()  # a ping through all stages: every tap of the request has arrived
    checked, used = 0, pdm.busiest
    for (origin, tokens), draft in used.drafts.items():
        newest = len(tokens) - 1
        if list(tokens) == text[: len(tokens)] and newest < used._filled(len(split)):
            fresh = DraftRuntime(module, split, CAPACITY, width)
            logits = fresh.draft(fresh.plan(origin, newest), used._taps.states[: newest + 1])
            assert draft.token == int(logits.argmax()), (origin, newest)
            checked += 1
    assert checked > NEW / 3


@pytest.mark.parametrize(("breadth", "width"), [(2, 1), (4, 1), (3, 2)])
def test_drafts_that_branch_are_those_of_a_pass_over_their_own_text(
    module: DraftModule, shallow_model: Path, split: tuple[int, ...], breadth: int, width: int
) -> None:
    settings = {"max_model_len": CAPACITY, "prefill_chunk": 64, "max_num_seqs": SLOTS}
    shape = {"tokens_per_frame": width, "tree_width": breadth}
    with local_engine(shallow_model, split, ANCHORS[1:], **settings, **shape) as wide:
        pdm = drafter(module, shallow_model, split, width, wide.config.scratch)
        for sampling in (Sampling(seed=3, top_k=200, top_p=0.9), Sampling(seed=0, temperature=0)):
            wide.drafting.use(NoDrafter())
            plain = wide.client.generate(PROMPT, NEW, sampling)
            wide.drafting.use(pdm)
            for slot in range(SLOTS):
                pdm(slot).drafts.clear()
            result = wide.client.generate(PROMPT, NEW, sampling)
            assert result.tokens == plain.tokens
            assert result.counts is not None
            assert result.counts.sent > result.counts.accepted + result.counts.rejected, "nothing has branched"
        text = PROMPT + result.tokens
        wide.client.status()  # a ping through all stages: every tap of the request has arrived
    checked, used = 0, pdm.busiest
    for (origin, tokens), draft in used.drafts.items():
        newest = len(tokens) - 1
        if list(tokens) == text[: len(tokens)] and newest < used._filled(len(split)):
            fresh = DraftRuntime(module, split, CAPACITY, width)
            logits = fresh.draft(fresh.plan(origin, newest), used._taps.states[: newest + 1])
            assert draft.token == int(logits.argmax()), (origin, newest)
            assert len(draft.chances) == len(draft.candidates)
            checked += 1
    assert checked > NEW / 3


def test_aborts_leave_nothing_behind(
    engine: LocalEngine, module: DraftModule, shallow_model: Path, split: tuple[int, ...]
) -> None:
    engine.drafting.use(NoDrafter())
    client = engine.client
    plain = client.generate(PROMPT, 20).tokens
    engine.drafting.use(drafter(module, shallow_model, split))
    for after in (1, 2, 5, 9):
        identifier = client.send(PROMPT[::-1], 100)
        assert client.result(identifier, abort_after=after).finish == "abort"
        assert client.generate(PROMPT, 20).tokens == plain


def test_the_rank_of_the_right_token_is_counted(
    engine: LocalEngine, module: DraftModule, shallow_model: Path, split: tuple[int, ...]
) -> None:
    engine.drafting.use(drafter(module, shallow_model, split))
    counts = engine.client.generate(PROMPT, NEW).counts
    assert counts is not None
    assert counts.ranked == counts.accepted + counts.rejected
    assert counts.hits[0] == counts.accepted
    assert counts.hits == sorted(counts.hits)
