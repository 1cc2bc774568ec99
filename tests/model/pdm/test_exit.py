"""An exit head: the same tokens as plain decoding, one row a draft, and the same drafts in training and at work."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, LlamaConfig

from speculation.decisions.features import FeatureMap, RowRule
from speculation.drafters.base import PENDING, Answer, Draft, Start
from speculation.drafters.exit import load
from speculation.drafters.load_pdm import load as load_pdm
from speculation.drafters.none import NoDrafter
from speculation.drafters.pdm import PdmDrafter
from speculation.pdm.checkpoint import save_module
from speculation.pdm.module import DraftModule
from speculation.pdm.runtime import DraftRuntime
from speculation.pdm.target import read_head, read_tensor
from speculation.training.examples.draws import build_chain
from speculation.training.examples.layout import PackedRows
from tests.harness import LocalEngine, inproc_endpoints, local_engine
from tests.model.identity import RecordingSampler, recorded_logits
from tests.model.pdm.modules import random_anchors, random_module
from workers.shared.config import DrafterConfig, EngineConfig
from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError
from workers.shared.messages import Sampling, Tap
from workers.shared.model_files.tensor_sizes import EMBEDDING

EXITS = (0, 1, 4)
SPLITS = [(4, 4), (1, 1, 2, 2, 2), (6, 2, 0)]
PROMPT = [40, 41, 42, 40, 41, 42, 40, 41] * 10
NEW = 24
CAPACITY = 512
SETTINGS = {"max_model_len": CAPACITY, "prefill_chunk": 64, "max_num_seqs": 2}
SAMPLED = Sampling(seed=3, top_k=200, top_p=0.9)


class Watched(PdmDrafter):
    """Remembers its drafts by the tokens before them, and how often it had to wait for stage 0."""

    def __init__(self, module: DraftModule, embedding: torch.Tensor, split: tuple[int, ...]) -> None:
        super().__init__(DraftRuntime(module, split, CAPACITY), embedding, module, CAPACITY)
        self.drafts: dict[tuple[int, ...], Draft] = {}
        self.waits = 0

    def draft(self, tokens: Sequence[int]) -> Answer:
        here = self._filled(1)
        answer = super().draft(tokens)
        if isinstance(answer, Draft):
            assert here >= len(tokens), "a draft before the tap of the newest token"
            assert self._runtime.cached == len(tokens)
            self.drafts[tuple(tokens)] = answer
        self.waits += answer is PENDING
        return answer


@pytest.fixture(scope="module", params=[0, 2], ids=["no layer", "two layers"])
def head(request: pytest.FixtureRequest, shallow_model: Path) -> DraftModule:
    """A random exit head with the target's own rows, so that some of its drafts are right."""
    layers: int = request.param
    made = random_module(AutoConfig.from_pretrained(shallow_model), layers, anchors=EXITS, rows=RowRule.EXIT)
    made.take_head(read_head(shallow_model).float())
    return made.eval().requires_grad_(False)


@pytest.fixture(scope="module", params=SPLITS, ids=str)
def engine(request: pytest.FixtureRequest, shallow_model: Path) -> Iterator[LocalEngine]:
    read = FeatureMap((0, 1, 4, 8), request.param, RowRule.EXIT).read
    with recorded_logits(), local_engine(shallow_model, request.param, read, **SETTINGS) as running:
        yield running


def watched(head: DraftModule, shallow_model: Path, split: tuple[int, ...]) -> list[Watched]:
    embedding = read_tensor(shallow_model, EMBEDDING).float()
    return [Watched(head, embedding, split) for _ in range(2)]


@pytest.mark.parametrize("sampling", [Sampling(seed=0, temperature=0), SAMPLED])
def test_tokens_and_logits_are_those_of_plain_decoding(
    engine: LocalEngine, head: DraftModule, shallow_model: Path, sampling: Sampling
) -> None:
    engine.drafting.use(NoDrafter())
    RecordingSampler.forget()
    plain = engine.client.generate(PROMPT, NEW, sampling)
    logits = RecordingSampler.seen
    drafters = watched(head, shallow_model, engine.split)
    engine.drafting.use(lambda slot: drafters[slot])
    for _ in range(2):
        RecordingSampler.forget()
        result = engine.client.generate(PROMPT, NEW, sampling)
        assert result.tokens == plain.tokens
        assert all(torch.equal(RecordingSampler.seen[position], row) for position, row in logits.items())
        counts = result.counts
        assert counts is not None
        assert counts.drafted == counts.accepted + counts.rejected + counts.discarded > 0


def test_a_draft_waits_for_its_tap_and_is_that_of_a_pass_over_the_whole_text(
    engine: LocalEngine, head: DraftModule, shallow_model: Path
) -> None:
    drafters = watched(head, shallow_model, engine.split)
    slow = Emulation(stage_ms=4.0)
    with local_engine(shallow_model, engine.split, drafters[0].anchors, emulate=slow, **SETTINGS) as running:
        running.drafting.use(lambda slot: drafters[slot])
        text = PROMPT + running.client.generate(PROMPT, NEW).tokens
        running.client.status()  # a ping through all stages: every tap of the request has arrived
    used = max(drafters, key=lambda drafter: len(drafter.drafts))
    assert used.waits > NEW / 2
    checked = 0
    for tokens, draft in used.drafts.items():
        if list(tokens) == text[: len(tokens)] and len(tokens) <= used._filled(1):
            fresh = DraftRuntime(head, engine.split, CAPACITY)
            logits = fresh.draft(fresh.plan(len(PROMPT), len(tokens) - 1), used._taps.states[: len(tokens)])
            assert draft.token == int(logits.argmax()), len(tokens)
            checked += 1
    assert checked > NEW / 3


def test_aborts_leave_nothing_behind(engine: LocalEngine, head: DraftModule, shallow_model: Path) -> None:
    engine.drafting.use(NoDrafter())
    plain = engine.client.generate(PROMPT, 20).tokens
    drafters = watched(head, shallow_model, engine.split)
    engine.drafting.use(lambda slot: drafters[slot])
    for after in (1, 2, 5):
        identifier = engine.client.send(PROMPT[::-1], 100)
        assert engine.client.result(identifier, abort_after=after).finish == "abort"
        assert engine.client.generate(PROMPT, 20).tokens == plain


@torch.no_grad()
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_training_equals_inference(target_config: LlamaConfig, layers: int) -> None:
    """Two splits with different exits, in one packed step."""
    module = random_module(target_config, layers, anchors=(0, 2, 4), rows=RowRule.EXIT)
    anchors = random_anchors(module, 13)
    splits = [(2, 3, 3), (4, 4)]
    maps = [FeatureMap((0, 2, 4), split, RowRule.EXIT) for split in splits]
    chains = [[build_chain(features, newest, 1) for newest in (7, 12)] for features in maps]
    packed = PackedRows(chains, [0, 0], "cpu")
    trained = module.logits(packed.forward(module, anchors)).view(2, 2, -1)
    for split, both in zip(splits, trained, strict=True):
        runtime = DraftRuntime(module, split, 14)
        poisoned = anchors.clone()
        poisoned[:, runtime.features.final_kind + 1 :] = float("nan")
        runtime.extend(poisoned[:5])
        for newest, logits in zip((7, 12), both, strict=True):
            plan = runtime.plan(5, newest)
            drafted = runtime.draft(plan, poisoned[plan.rows[0].position : newest + 1])
            assert (logits - drafted).abs().max() <= 1e-4 * drafted.abs().max()


@torch.no_grad()
def test_rows_of_dead_drafts_are_forgotten_though_nothing_is_drafted_for_long(target_config: LlamaConfig) -> None:
    """As in a crowd, where finished rows are computed ahead of the next draft."""
    module = random_module(target_config, 2, anchors=(0, 4), rows=RowRule.EXIT).eval()
    embedding = torch.randn(target_config.vocab_size, module.config.hidden_size)
    drafter = PdmDrafter(DraftRuntime(module, (4, 4), 200), embedding, module, 200)
    states = torch.randn(150, 1, module.config.hidden_size)

    def tap(start: int, end: int, epoch: int, sent: torch.Tensor) -> None:
        drafter.tap(Tap(0, 0, epoch, start, "float32", sent[start:end].numpy().tobytes()))

    prompt = list(range(5))
    drafter.begin(prompt, Sampling(seed=0, temperature=0), Start())
    tap(0, 5, 0, states)
    while drafter.advance():
        pass
    tokens = [*prompt, 5]
    drafter.verified(tokens, 6)
    dead = states + 1
    dead[5] = states[5]
    for position in range(5, 10):
        tap(position, position + 1, 0, dead)
        assert isinstance(drafter.draft(tokens), Draft)
        tokens.append(position + 1)
    drafter.rejected(6, 1)
    tokens = [*range(150)]
    for count in range(7, 151):
        drafter.verified(tokens, count)
        tap(count - 1, count, 1, states)
    while drafter.advance():
        pass
    draft = drafter.draft(tokens)
    fresh = DraftRuntime(module, (4, 4), 200)
    whole = torch.cat([embedding[tokens][:, None], states], dim=1)
    logits = fresh.draft(fresh.plan(5, 149), whole)
    assert isinstance(draft, Draft)
    assert draft.token == int(logits.argmax())
    assert draft.confidence == pytest.approx(float(logits.softmax(-1).max()), rel=1e-3)


class TestLoader:
    def config(self, target: Path, module: Path, split: tuple[int, ...]) -> EngineConfig:
        ends = inproc_endpoints(len(split))
        drafter = DrafterConfig("exit", module=str(module), module_target="tiny")
        return EngineConfig(str(target), split, ends, 64, drafter=drafter)

    def saved(self, target_config: LlamaConfig, folder: Path, rows: RowRule) -> Path:
        save_module(random_module(target_config, 1, anchors=(0, 3), rows=rows), folder)
        return folder

    def test_a_head_is_loaded_for_stage_0_alone(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path
    ) -> None:
        folder = self.saved(target_config, tmp_path, RowRule.EXIT)
        assert load(self.config(target_folder, folder, (3, 5)), 259)(0).anchors == (3,)
        with pytest.raises(ConfigError, match="stage 0 has 2 layers, and the exit head's exits are behind 3"):
            load(self.config(target_folder, folder, (2, 6)), 259)

    @pytest.mark.parametrize("rows", RowRule)
    def test_a_head_and_a_module_are_told_apart(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path, rows: RowRule
    ) -> None:
        folder = self.saved(target_config, tmp_path, rows)
        wrong, reason = (load_pdm, "an exit head, for") if rows is RowRule.EXIT else (load, "a draft module, for")
        with pytest.raises(ConfigError, match=f"is {reason} --drafter"):
            wrong(self.config(target_folder, folder, (3, 5)), 259)
