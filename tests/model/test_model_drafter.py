"""A small model as the drafter, in both frame policies: it changes no token, and drafts as the target samples."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import workers.prepare.tiny_model
from speculation.decisions.drafts.steps import Step
from speculation.decisions.drafts.tree import Node, Shoot
from speculation.decisions.policy import pipelined
from speculation.drafters.base import PENDING, Answer, Draft, Maker, Start
from speculation.drafters.load_model import load as load_model
from speculation.drafters.model import ModelDrafter
from speculation.drafters.none import NoDrafter
from tests.harness import LocalEngine, inproc_endpoints, local_engine
from tests.measure.pruned_model import write_pruned_model
from tests.model.pipeline import Pipeline
from tests.model.test_pipeline import EVERYTHING
from tests.unit.speculation.pipeline_sim import PipelineSim, Request, plain
from workers.model.checkpoint import Checkpoint
from workers.prepare.prepare import check_folder
from workers.shared.config import DrafterConfig, EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.messages import Sampling
from workers.shared.model_files.facts import read_facts
from workers.shared.model_files.vocabulary import check_vocabulary

CONTEXT = 512
NEW = 16
GREEDY = Sampling(seed=0, temperature=0)
POLICIES = [((8,), 3), ((3, 3, 2), 0), ((2, 2, 2, 2, 0), 4)]


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the target's size and another seed: it agrees with the target by chance only."""
    folder = tmp_path_factory.mktemp("other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers.prepare.tiny_model, "SEED", 7)
        patch.setattr(workers.prepare.tiny_model, "LAYERS", 8)
        workers.prepare.tiny_model.write_tiny_model(folder)
    return folder


@pytest.fixture(scope="module", params=POLICIES, ids=str)
def engine(request: pytest.FixtureRequest, shallow_model: Path) -> Iterator[LocalEngine]:
    split, drafts = request.param
    settings: dict[str, Any] = {"max_model_len": CONTEXT, "prefill_chunk": 64}
    with local_engine(shallow_model, split, drafts=drafts, **settings) as running:
        yield running


def load(target: Path, draft: Path, split: tuple[int, ...] = (8,), **settings: Any) -> Callable[[int], ModelDrafter]:
    config = DrafterConfig("model", draft_model=str(draft))
    ends = inproc_endpoints(len(split))
    engine = EngineConfig(str(target), split, ends, max_model_len=CONTEXT, drafter=config, **settings)
    return load_model(engine, read_facts(target).vocab_size)


class RecordedModel(ModelDrafter):
    """Remembers its drafts by the tokens before them, for all slots together."""

    drafts: ClassVar[dict[tuple[int, ...], Draft]] = {}

    @classmethod
    def of(cls, make: Callable[[int], ModelDrafter]) -> Callable[[int], "RecordedModel"]:
        def made(slot: int) -> RecordedModel:
            drafter, branches = make(slot), make(slot)._branches
            return cls(drafter._shard, drafter._sampler._vocab_size, drafter._capacity, slot, branches=branches)

        return made

    def draft(self, tokens: Sequence[int]) -> Answer:
        draft = super().draft(tokens)
        if isinstance(draft, Draft):
            self.drafts[tuple(tokens)] = draft
        return draft


def text(length: int) -> list[int]:
    return [random.Random(place).randrange(30, 500) for place in range(length)]


@pytest.fixture(scope="module")
def itself(shallow_model: Path) -> Maker:
    """The target as its own drafter."""
    return load(shallow_model, shallow_model)


@pytest.fixture(scope="module")
def stranger(shallow_model: Path, other_model: Path) -> Maker:
    """A drafter that is right by chance only."""
    return RecordedModel.of(load(shallow_model, other_model))


@pytest.mark.parametrize(
    ("length", "sampling"),
    [
        *((length, sampling) for length in (1, 40, 300) for sampling in (GREEDY, Sampling(seed=5))),
        (40, EVERYTHING),
    ],
)
def test_tokens_are_those_of_plain_decoding(
    engine: LocalEngine, itself: Maker, stranger: Maker, sampling: Sampling, length: int
) -> None:
    engine.drafting.use(NoDrafter())
    plain = engine.client.generate(text(length), NEW, sampling).tokens
    for drafter in (itself, stranger):
        engine.drafting.use(drafter)
        for _ in range(2):  # the second time, the slot holds some of the prompt
            result = engine.client.generate(text(length), NEW, sampling)
            assert result.tokens == plain
            counts = result.counts
            assert counts is not None
            assert counts.drafted == counts.accepted + counts.rejected + counts.discarded
            assert counts.accepted + counts.rejected > 0
            assert counts.hits[0] == counts.accepted
            if drafter is itself:
                assert counts.rejected == 0, "a model agrees with itself, at any temperature"
            else:
                assert counts.rejected > 0


def test_a_draft_is_that_of_a_pass_over_the_whole_text(engine: LocalEngine, stranger: Maker, other_model: Path) -> None:
    engine.drafting.use(stranger)
    whole = Pipeline(other_model, (8,), max_len=CONTEXT)
    for prompt in (text(70), text(40)[::-1], text(70)):  # the last one finds its slot again
        RecordedModel.drafts.clear()
        engine.client.generate(prompt, NEW, GREEDY)
        assert len(RecordedModel.drafts) > NEW / 2
        for tokens, draft in list(RecordedModel.drafts.items())[::4]:
            logits = whole.frame(0, tokens)
            assert draft.candidates == tuple(logits.topk(16).indices.tolist()), len(tokens)
            assert draft.confidence == pytest.approx(float(logits.softmax(0).max()), rel=1e-3)


def test_aborts_leave_nothing_behind(engine: LocalEngine, itself: Maker) -> None:
    engine.drafting.use(NoDrafter())
    client, prompt = engine.client, text(40)
    plain = client.generate(prompt, 12).tokens
    engine.drafting.use(itself)
    for after in (0, 1, 2, 5, 11):
        identifier = client.send(text(300), 100)
        if after == 0:
            client.abort(identifier)
        assert client.result(identifier, abort_after=after).finish == "abort"
        result = client.generate(prompt, 12)
        assert result.tokens == plain, after
        assert result.counts is not None
        assert result.counts.rejected == 0, after


def test_a_drafter_that_was_not_asked_for_a_while_catches_up(shallow_model: Path) -> None:
    drafter = load(shallow_model, shallow_model)(0)
    prompt, more = text(40), text(140)[40:]
    drafter.begin(prompt, GREEDY, Start())
    tokens = list(prompt)
    for token in more:
        tokens.append(token)
        drafter.verified(tokens, len(tokens))
    assert drafter.draft(tokens) is PENDING, "rank 0 would be away for too long"
    while drafter.advance():
        pass
    draft = drafter.draft(tokens)
    assert isinstance(draft, Draft)
    assert draft.token == int(Pipeline(shallow_model, (8,), max_len=CONTEXT).frame(0, tokens).argmax())


def copy(model: Path, folder: Path, **changes: object) -> Path:
    """The model in another folder, with a changed config.json."""
    write_pruned_model(model, folder, ())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def test_past_its_own_context_a_draft_model_is_silent(shallow_model: Path, tmp_path: Path) -> None:
    short = load(shallow_model, copy(shallow_model, tmp_path / "short", max_position_embeddings=64))
    with local_engine(shallow_model, (4, 4), max_model_len=CONTEXT) as running:
        plain = running.client.generate(text(50), NEW).tokens
        running.drafting.use(short)
        result = running.client.generate(text(50), NEW)
        assert result.tokens == plain
        assert result.counts is not None
        assert 10 <= result.counts.drafted <= 15
        assert running.client.generate(text(100), 5).counts.drafted == 0  # type: ignore[union-attr]


def test_a_draft_model_of_another_vocabulary_is_refused_with_both_names(shallow_model: Path, tmp_path: Path) -> None:
    larger = copy(shallow_model, tmp_path / "larger", vocab_size=513)
    renamed = copy(shallow_model, tmp_path / "renamed")
    tokenizer = json.loads((renamed / "tokenizer.json").read_text())
    (renamed / "tokenizer.json").write_text(json.dumps(tokenizer))  # the same content, other bytes
    check_vocabulary(renamed, shallow_model, "--draft-model")
    tokenizer["added_tokens"][0]["content"] = "<another>"
    (renamed / "tokenizer.json").write_text(json.dumps(tokenizer))
    for folder, message in ((larger, "vocabulary of 513 tokens"), (renamed, "token ids mean different text")):
        with pytest.raises(ConfigError, match=message) as refused:
            load(shallow_model, folder)
        assert str(folder) in str(refused.value)
        assert str(shallow_model) in str(refused.value)


def test_drafter_model_without_a_draft_model_is_refused(shallow_model: Path) -> None:
    config = EngineConfig(str(shallow_model), (8,), inproc_endpoints(1), CONTEXT, drafter=DrafterConfig("model"))
    with pytest.raises(ConfigError, match="needs --draft-model"):
        load_model(config, 512)


def test_a_pruned_model_is_the_target_without_some_layers(tiny_model: Path, tmp_path: Path) -> None:
    dropped = {0, 3, 4, 15}
    write_pruned_model(tiny_model, tmp_path / "pruned", dropped)
    check_folder(tmp_path / "pruned")
    kept = [layer for layer in range(16) if layer not in dropped]
    target, pruned = Checkpoint(tiny_model), Checkpoint(tmp_path / "pruned")
    per_layer = sum(name.startswith("model.layers.0.") for name in target.entries)
    assert len(pruned.entries) == len(target.entries) - len(dropped) * per_layer
    for place, layer in enumerate(kept):
        names = [f"model.layers.{number}.mlp.up_proj.weight" for number in (layer, place)]
        ((_, expected),) = target.load(names[:1], torch.float32, torch.device("cpu"))
        ((_, found),) = pruned.load(names[1:], torch.float32, torch.device("cpu"))
        assert torch.equal(expected, found)
    load(tiny_model, tmp_path / "pruned")
    for wrong in (range(16), [16]):
        with pytest.raises(ConfigError, match="cannot be dropped"):
            write_pruned_model(tiny_model, tmp_path / "none", wrong)


class DraftingSim(PipelineSim):
    """A simulated pipeline that tells a drafter of what happens, and asks it behind every leaf."""

    def __init__(self, drafter: ModelDrafter, make: Callable[[int], ModelDrafter], prompt: Sequence[int]) -> None:
        policy = pipelined(2, 0, 2, 3)
        super().__init__(2, policy, 64, acceptance=0.8, rng=random.Random(3), jitter=0.5)
        self.compared = 0
        self._drafter, self._make, self._prompt = drafter, make, list(prompt)
        drafter.begin(prompt, SHAPED, Start())
        while drafter.advance():
            pass

    def _apply(self, step: Step) -> None:
        schedule = self.schedule
        if step.finish is None:
            for place, count in enumerate(range(schedule.verified - len(step.tokens) + 1, schedule.verified + 1)):
                if place < len(step.right):
                    self._drafter.chosen(*step.right[place])
                if step.rejected and count == schedule.verified:
                    self._drafter.rejected(count - 1, schedule.epoch)
                self._drafter.verified(schedule.tokens, count)
        super()._apply(step)

    def _shoots(self, leaf: Node) -> list[Shoot]:
        schedule = self.schedule
        if leaf is schedule.leaves[0]:
            self._drafter.level(schedule.tokens, schedule.verified, schedule.leaves)
        answer = self._drafter.draft(schedule.text(leaf))
        alone = self._make(1)
        alone.begin(self._prompt, SHAPED, Start())
        for count in range(len(self._prompt), schedule.verified):
            alone.verified(schedule.tokens, count + 1)
        while alone.advance():
            pass
        expected = alone.draft(schedule.tokens)
        assert isinstance(answer, Draft)
        assert isinstance(expected, Draft)
        assert answer.candidates[:4] == expected.candidates[:4]
        assert answer.confidence == pytest.approx(expected.confidence, rel=1e-3)
        self.compared += 1
        return super()._shoots(leaf)


SHAPED = Sampling(seed=5, repetition_penalty=1.2)


def test_a_level_of_leaves_is_drafted_as_each_of_them_alone_whatever_has_been_chosen_and_rejected(
    shallow_model: Path, other_model: Path
) -> None:
    drafter = load(shallow_model, other_model, (4, 4), tree_width=3, tokens_per_frame=2)(0)
    prompt = [place % 50 for place in range(0, 60, 3)]
    sim = DraftingSim(drafter, load(shallow_model, other_model), prompt)
    (outcome,) = sim.run([Request(prompt, 40)])
    assert outcome.tokens == plain(prompt, 40)
    assert sim.schedule.counts.moved > 3
    assert sim.schedule.counts.rejected > 3
    assert sim.compared > 50


def test_branches_change_no_token(shallow_model: Path, other_model: Path) -> None:
    shapes: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((4, 4), {"tree_width": 4}),
        ((3, 3, 2), {"tree_width": 2, "tokens_per_frame": 2}),
    ]
    for split, settings in shapes:
        with local_engine(shallow_model, split, max_model_len=CONTEXT, prefill_chunk=64, **settings) as running:
            for sampling in (GREEDY, EVERYTHING):
                running.drafting.use(NoDrafter())
                plain = running.client.generate(text(40), NEW, sampling).tokens
                for draft in (shallow_model, other_model):
                    running.drafting.use(load(shallow_model, draft, split, **settings))
                    result = running.client.generate(text(40), NEW, sampling)
                    assert result.tokens == plain
                    assert result.counts is not None
                    assert (result.counts.rejected == 0) == (draft is shallow_model)
