"""Whatever the controller chooses, and whenever, the tokens and logits are those of plain decoding."""

import random
from pathlib import Path

import pytest
from transformers import AutoConfig

from speculation.decisions.controller import Controller, Session
from speculation.decisions.estimates import Choice, Judgement, Measured, Times
from speculation.drafters.base import Drafter
from speculation.drafters.combined import CombinedDrafter
from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.none import NoDrafter
from speculation.drafters.pdm import PdmDrafter
from speculation.drafters.switched import SwitchedDrafter
from speculation.pdm.runtime import DraftRuntime
from speculation.pdm.target import read_head, read_tensor
from tests.harness import local_engine
from tests.model.identity import RecordingSampler, recorded_logits
from tests.model.pdm.modules import random_module
from workers.shared.emulation import Emulation
from workers.shared.messages import Sampling, Tap
from workers.shared.model_files.tensor_sizes import EMBEDDING

ANCHORS = (0, 3, 5, 9, 12)
SPLIT = (6, 5, 5)
CAPACITY = 512
CHOICES = (
    Choice("none", silence=1.0),
    Choice("ngram", 0.3),
    Choice("pdm+ngram", 0.6, family="module", listens=True),
    Choice("pdm", 0.6, family="module", listens=True),
)
GREEDY = Sampling(seed=0, temperature=0)


class Fickle(Session):
    """Changes its mind at random, and stops listening at a random moment."""

    def sampled(self, now: float, cycles: int, tokens: int, *, rejected: bool, alone: bool = True) -> None:
        controller, before = self._controller, self.choice
        assert isinstance(controller, FickleController)
        rng = controller.rng
        super().sampled(now, cycles, tokens, rejected=rejected, alone=alone)
        self.choice = rng.choice(self._open())
        controller.changes += self.choice is not before
        if not self.choice.listens and rng.random() < 0.1:
            self.listening = False


class FickleController(Controller):
    rng = random.Random(0)
    changes = 0

    def begin(self, limit: int) -> Session:
        return Fickle(self, limit)


class CountedPdm(PdmDrafter):
    """Counts what it hears and is asked."""

    taps = 0
    asked = 0

    def tap(self, tap: Tap) -> None:
        self.taps += 1
        super().tap(tap)

    def advance(self) -> bool:
        self.asked += 1
        return super().advance()


@pytest.fixture(scope="module")
def modules(tiny_model: Path) -> list[CountedPdm]:
    """One a slot; the module has the target's own head, so that some of its drafts are right."""
    made = random_module(AutoConfig.from_pretrained(tiny_model), anchors=ANCHORS)
    made.take_head(read_head(tiny_model).float())
    made.eval().requires_grad_(False)
    embedding = read_tensor(tiny_model, EMBEDDING).float()
    return [CountedPdm(DraftRuntime(made, SPLIT, CAPACITY), embedding, made, CAPACITY) for _ in range(4)]


def test_tokens_and_logits_do_not_depend_on_the_choice(tiny_model: Path, modules: list[CountedPdm]) -> None:
    prompts = [[40, 41, 42, 40, 41, 42, 40, 41] * 12, [40, 41, 42] * 9, [7, 8, 9] * 30 + [5], [7, 8, 9] * 30 + [6]]
    controller = FickleController(3, CHOICES, Measured({choice.name: Times(0.01, 0.03, 0.03) for choice in CHOICES}))
    settings = {"max_model_len": CAPACITY, "prefill_chunk": 16}

    def switched(slot: int) -> Drafter:
        both = CombinedDrafter(modules[slot], NgramDrafter(6, 1), module_delays_stages=True)
        return SwitchedDrafter(both, "pdm+ngram", CHOICES)

    with recorded_logits(), local_engine(tiny_model, SPLIT, ANCHORS[1:], controller=controller, **settings) as engine:
        for prompt in [*prompts, *prompts[::-1]]:
            for sampling in (GREEDY, Sampling(seed=3, top_k=200)):
                engine.drafting.use(NoDrafter())
                RecordingSampler.forget()
                plain, logits = engine.client.generate(prompt, 24, sampling), RecordingSampler.seen
                engine.drafting.use(switched)
                RecordingSampler.forget()
                result = engine.client.generate(prompt, 24, sampling)
                assert result.tokens == plain.tokens
                assert all((RecordingSampler.seen[at] == logits[at]).all() for at in logits)
        assert controller.changes > 50  # in 368 samples, of which each has two choices at least


def test_quiet_means_that_nothing_is_sent_nor_computed(tiny_model: Path, modules: list[CountedPdm]) -> None:
    slow, fast = Times(0.5, 1.0, 1.0), Times(0.005, 0.01, 0.01)
    controller = Controller(3, CHOICES, Measured({one.name: slow if one.listens else fast for one in CHOICES}))
    for choice in CHOICES[2:]:
        for _ in range(5):
            controller.tried(choice, 1e9, won=False)  # and is not to be tried for a long time

    def switched(slot: int) -> Drafter:
        both = CombinedDrafter(modules[slot], NgramDrafter(6, 1), module_delays_stages=True)
        return SwitchedDrafter(both, "pdm+ngram", CHOICES)

    before = [(module.taps, module.asked) for module in modules]
    with local_engine(tiny_model, SPLIT, ANCHORS[1:], controller=controller, max_model_len=CAPACITY) as engine:
        engine.drafting.use(switched)
        engine.client.generate([40, 41, 42] * 30, 40)
    assert [(module.taps, module.asked) for module in modules] == before


def test_calibration_measures_the_pipeline_before_it_serves_and_is_kept(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path))
    controller = Controller(4, CHOICES[:2])
    with local_engine(tiny_model, (4, 4, 4, 4), controller=controller, emulate=Emulation(stage_ms=20)) as engine:
        assert engine.client.status().calibrating
        result = engine.client.generate([1, 2, 3], 5, GREEDY)
        assert len(result.tokens) == 5
        assert controller.calibrated
        silent, right = ({verdict: 1.0} for verdict in (Judgement.SILENT, Judgement.RIGHT))
        assert controller.paces.seconds(CHOICES[0], silent) > 0.08  # four stages of 20 ms, one after the other
        assert controller.paces.seconds(CHOICES[1], right) < controller.paces.seconds(CHOICES[0], silent) / 2
        assert controller.paces.shared(*CHOICES[:2])  # a lookup takes no time
        assert not engine.client.status().calibrating
        assert engine.client.status().stats.counts.cycles <= 4 * 5  # those of the request, and no others
