"""Draft heads inside a running engine: they change no token, and draft what a pass over the whole text drafts."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from msgspec.structs import replace

from speculation.decisions.taps import columns_of_stages
from speculation.drafters.base import PENDING, Answer, Draft, Drafter, DrafterWrapper, Maker
from speculation.drafters.heads.chain import ChainDrafter
from speculation.drafters.heads.parallel import ParallelDrafter
from speculation.drafters.none import NoDrafter
from speculation.heads.checkpoint import load_head
from speculation.heads.config import HeadConfig
from speculation.heads.network import EagleHead
from speculation.heads.runtime import HeadRuntime
from speculation.taps import TapBuffer
from tests.harness import LocalEngine, local_engine
from tests.model.heads.made import EAGLE3, PEAGLE, random_head, write_speculators
from tests.model.heads.reference import Reference
from tests.model.test_pipeline import EVERYTHING
from workers.model.reference import load_reference
from workers.prepare.tiny_model import HIDDEN, VOCABULARY
from workers.shared.messages import Sampling

CONTEXT = 512
NEW = 24
SLOTS = 2
GREEDY = Sampling(seed=0, temperature=0)
# Layers a stage, drafts a round (0: frames in every stage), tokens a frame, drafts a position.
PIPELINES = [
    ((8,), 4, 1, 1),
    ((3, 3, 2), 0, 1, 1),
    ((2, 6, 0), 0, 3, 1),
    ((5, 3), 3, 1, 3),
    ((3, 3, 2), 0, 1, 4),
]
KINDS: dict[str, HeadConfig] = {
    "eagle3": replace(EAGLE3, features=(1, 4, 6)),
    "peagle": replace(PEAGLE, features=(1, 3, 4, 6, 7)),
}


@pytest.fixture(scope="module", params=KINDS)
def head(request: pytest.FixtureRequest, shallow_model: Path, tmp_path_factory: pytest.TempPathFactory) -> EagleHead:
    folder = write_speculators(random_head(KINDS[request.param]), tmp_path_factory.mktemp("head"))
    return load_head(folder, shallow_model, request.param).network


@pytest.fixture(scope="module", params=PIPELINES, ids=str)
def engine(request: pytest.FixtureRequest, shallow_model: Path, head: EagleHead) -> Iterator[LocalEngine]:
    split, drafts, width, breadth = request.param
    settings: dict[str, Any] = {"max_model_len": CONTEXT, "prefill_chunk": 64, "max_num_seqs": SLOTS}
    settings |= {"tokens_per_frame": width, "tree_width": breadth}
    with local_engine(shallow_model, split, head.anchors, drafts=drafts, **settings) as running:
        yield running


class Recorded:
    """What drafters of all slots have drafted, by text and the number of tokens that were verified."""

    drafts: ClassVar[dict[tuple[int, tuple[int, ...]], Draft]] = {}


class RecordedChain(ChainDrafter):
    def draft(self, tokens: Sequence[int]) -> Answer:
        return recorded(self, tokens, super().draft(tokens))


class RecordedParallel(ParallelDrafter):
    def draft(self, tokens: Sequence[int]) -> Answer:
        return recorded(self, tokens, super().draft(tokens))


def recorded(drafter: ChainDrafter | ParallelDrafter, tokens: Sequence[int], answer: Answer) -> Answer:
    if isinstance(answer, Draft):
        Recorded.drafts[len(drafter._final), tuple(tokens)] = answer
    return answer


class OftenRight(DrafterWrapper):
    """Lets the drafter do its work, and is right two times in three, of which once as its second candidate."""

    def __init__(self, inner: Drafter, text: Sequence[int], *, branches: bool) -> None:
        super().__init__(inner)
        self._text = text
        self._branches = branches

    def draft(self, tokens: Sequence[int]) -> Answer:
        answer, place = super().draft(tokens), len(tokens)
        if answer is PENDING or place % 3 == 0 or place >= len(self._text):
            return answer
        right = self._text[place]
        if place % 3 == 1 or not self._branches:
            return Draft((right,))
        return Draft(((right + 1) % VOCABULARY, right), chances=(0.5, 0.4))


def makers(engine: LocalEngine, head: EagleHead, text: Sequence[int]) -> dict[str, Maker]:
    """The head alone, and one that is right more often than random weights are."""
    shape = (CONTEXT, len(head.anchors), HIDDEN)
    rounds = engine.config.drafter.num_speculative_tokens
    scratch, branches = engine.config.scratch, engine.config.breadth > 1

    def alone(slot: int) -> Drafter:
        columns = columns_of_stages(head.anchors, engine.split)
        taps, runtime = TapBuffer(columns, shape, torch.float32, "cpu"), HeadRuntime(head, CONTEXT + 40, scratch)
        if head.config.parallel:
            frames = 1 if rounds else len(engine.split)
            return RecordedParallel(runtime, taps, VOCABULARY, head, frames, branches=branches)
        return RecordedChain(runtime, taps, VOCABULARY, branches=branches)

    return {"alone": alone, "often right": lambda slot: OftenRight(alone(slot), text, branches=branches)}


def text(length: int) -> list[int]:
    return [random.Random(place).randrange(30, 500) for place in range(length)]


@pytest.mark.parametrize(
    ("sampling", "length"),
    [(Sampling(seed=5), 1), (EVERYTHING, 130)],  # greedily, the next test does
    ids=["seeded", "everything"],
)
def test_tokens_are_those_of_plain_decoding(
    engine: LocalEngine, head: EagleHead, sampling: Sampling, length: int
) -> None:
    prompt = text(length)
    engine.drafting.use(NoDrafter())
    plain = engine.client.generate(prompt, NEW, sampling).tokens
    for name, make in makers(engine, head, [*prompt, *plain]).items():
        engine.drafting.use(make)
        for _ in range(2):  # the second time, a slot holds some of the prompt
            result = engine.client.generate(prompt, NEW, sampling)
            assert result.tokens == plain, name
            counts = result.counts
            assert counts is not None
            assert counts.drafted == counts.accepted + counts.rejected + counts.discarded
            assert counts.accepted + counts.rejected > 0
            assert name == "alone" or counts.accepted > 0
            assert name == "alone" or (counts.moved > 0) == (engine.config.breadth > 1)


@torch.no_grad()
def test_a_draft_is_that_of_a_pass_over_the_whole_text(
    engine: LocalEngine, head: EagleHead, shallow_model: Path
) -> None:
    prompt = text(40)
    engine.drafting.use(NoDrafter())
    whole = [*prompt, *engine.client.generate(prompt, NEW, GREEDY).tokens]
    said = load_reference(shallow_model, torch.float32)(torch.tensor([whole]), output_hidden_states=True)
    states = torch.stack([said.hidden_states[index][0] for index in head.config.features], dim=1)
    reference = Reference(head.config, dict(head.state_dict()), head.draft_to_target.tolist())
    make = makers(engine, head, whole)["often right"]
    engine.drafting.use(make)
    Recorded.drafts.clear()
    assert engine.client.generate(prompt, NEW, GREEDY).tokens == whole[len(prompt) :]
    engine.client.status()
    found = list(Recorded.drafts.items())
    assert len(found) > NEW / 2
    for (verified, tokens), draft in found[::3]:
        final, drafts = list(tokens[:verified]), tokens[verified:]
        assert final == whole[:verified]
        if head.config.parallel:
            logits = reference.parallel(final, states[: verified - 1], len(drafts))
        else:
            logits = reference.chain(final, states[: verified - 1], drafts)
        assert draft.token == reference.draft_ids[int(logits.argmax())], (verified, len(tokens))


def test_aborts_and_requests_side_by_side_leave_nothing_behind(engine: LocalEngine, head: EagleHead) -> None:
    engine.drafting.use(NoDrafter())
    client, prompt, other = engine.client, text(70), text(90)[::-1]
    plain = client.generate(prompt, 12).tokens
    plain_other = client.generate(other, 12).tokens
    engine.drafting.use(makers(engine, head, [*prompt, *plain])["often right"])
    for after in (0, 1, 3, 7):
        identifier = client.send(prompt[::-1], 100)
        if after == 0:
            client.abort(identifier)
        assert client.result(identifier, abort_after=after).finish == "abort"
        both = [client.send(prompt, 12), client.send(other, 12)]
        results = client.results(dict.fromkeys(both))
        assert [results[one].tokens for one in both] == [plain, plain_other], after


def test_a_request_goes_on_where_an_earlier_engine_left_it(engine: LocalEngine, head: EagleHead) -> None:
    prompt = text(30)
    engine.drafting.use(NoDrafter())
    plain = engine.client.generate(prompt, NEW).tokens
    engine.drafting.use(makers(engine, head, [*prompt, *plain])["often right"])
    identifier = engine.client.send(prompt, NEW, generated=plain[:9])
    result = engine.client.result(identifier)
    assert result.tokens == plain[9:]
    assert result.counts is not None
    assert result.counts.accepted > 0
