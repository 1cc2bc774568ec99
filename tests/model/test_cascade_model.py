"""Cascades of real models, each in a thread with its own links: whatever they do, and whenever, no token changes."""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import speculation.cascade.model
from speculation.cascade.assemble import assemble
from speculation.cascade.drafter import load
from speculation.cascade.line import SmallerLine
from speculation.cascade.messages import OpenText, WriteText
from speculation.cascade.model import CascadeModel
from speculation.drafters.base import Maker
from speculation.drafters.none import NoDrafter
from tests.harness import LocalEngine, inproc_endpoints, local_engine
from tests.measure.pruned_model import write_pruned_model
from tests.model.pipeline import Pipeline
from tests.model.test_pipeline import EVERYTHING
from workers.shared.config import DrafterConfig, Endpoints, EngineConfig
from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError
from workers.shared.messages import Sampling
from workers.shared.model_files.facts import read_facts

CONTEXT = 512
NEW = 16
GREEDY = Sampling(seed=0, temperature=0)
# Stages, drafts of a round, tokens a frame, lookahead.
POLICIES = [((8,), 0, 4, 0), ((4, 4), 0, 1, 0), ((3, 3, 2), 0, 3, 0), ((4, 4), 6, 1, 0), ((8,), 3, 1, 3)]
SLOTS = 3
SLOW = Emulation(stage_ms=20.0)  # so that there is time to write ahead of the target


@pytest.fixture(scope="module")
def family(shallow_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """The target without two layers, and without one: they say what it does in some places, and not in others."""
    folder = tmp_path_factory.mktemp("family")
    write_pruned_model(shallow_model, folder / "small", (6, 7))
    write_pruned_model(shallow_model, folder / "middle", (6,))
    return folder / "small", folder / "middle"


class LateLine(SmallerLine):
    """A channel of which either direction is now and then late, by a turn of its owner's loop or several."""

    _random = random.Random(5)

    def arrived(self) -> None:
        if self._random.random() < 0.7:
            super().arrived()

    def tell(self) -> None:
        if self._random.random() < 0.7:
            super().tell()


class SlowModel(CascadeModel):
    """Is now and then slow, and wakes up often enough for channels that are late."""

    _random = random.Random(7)

    def _step(self) -> bool:
        if self._random.random() < 0.3:
            time.sleep(self._random.random() * 0.004)
        return super()._step()

    def _patience(self) -> float:
        return 0.01


@contextmanager
def late_and_slow() -> Iterator[None]:
    """Whatever is assembled inside has random delays on every channel, and in every model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("speculation.cascade.assemble.SmallerLine", LateLine)
        patch.setattr("speculation.cascade.drafter.SmallerLine", LateLine)
        patch.setattr("speculation.cascade.assemble.CascadeModel", SlowModel)
        yield


def configuration(
    target: Path, models: Sequence[Path], folder: Path, lookahead: int = 0, lead: int = 16
) -> EngineConfig:
    drafter = DrafterConfig("cascade", cascade=tuple(map(str, models)), cascade_lookahead=lookahead, cascade_lead=lead)
    ends = inproc_endpoints(1)
    endpoints = Endpoints(ends.bus, ends.results, ends.control, ends.data, cascade=f"unix://{folder}/c")
    return EngineConfig(str(target), (8,), endpoints, CONTEXT, max_num_seqs=SLOTS, drafter=drafter)


class Cascade:
    """Running models of a cascade."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.models = [assemble(config, number) for number in range(len(config.drafter.cascade))]
        self.threads = [threading.Thread(target=model.run, daemon=True) for model in self.models]
        for thread in self.threads:
            thread.start()

    def maker(self) -> Maker:
        return load(self.config, read_facts(Path(self.config.model)).vocab_size)

    def stop(self) -> None:
        for model in self.models:
            model.stop()
        for thread in self.threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self.threads)


@contextmanager
def cascade(config: EngineConfig) -> Iterator[Cascade]:
    running = Cascade(config)
    try:
        yield running
    finally:
        running.stop()


def text(length: int) -> list[int]:
    return [random.Random(place).randrange(30, 500) for place in range(length)]


@contextmanager
def engine_with(config: EngineConfig, policy: tuple[tuple[int, ...], int, int, int]) -> Iterator[LocalEngine]:
    split, drafts, width, _ = policy
    with cascade(config) as running:
        maker = running.maker()
        settings: dict[str, Any] = {"max_model_len": CONTEXT, "prefill_chunk": 64, "max_num_seqs": SLOTS}
        settings |= {"tokens_per_frame": width, "emulate": SLOW}
        with local_engine(Path(config.model), split, drafts=drafts, maker=maker, **settings) as engine:
            yield engine


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_tokens_are_those_of_plain_decoding_with_delays_everywhere(
    shallow_model: Path, family: tuple[Path, ...], policy: tuple[tuple[int, ...], int, int, int], tmp_path: Path
) -> None:
    cases = [(1, GREEDY), (40, GREEDY), (300, Sampling(seed=5)), (40, Sampling(seed=6)), (40, EVERYTHING)]
    with local_engine(shallow_model, policy[0], max_model_len=CONTEXT, prefill_chunk=64) as engine:
        engine.drafting.use(NoDrafter())
        plain = [engine.client.generate(text(length), NEW, sampling).tokens for length, sampling in cases]
    with ExitStack() as stack:
        stack.enter_context(late_and_slow())
        config = configuration(shallow_model, family, tmp_path, lookahead=policy[3])
        engine = stack.enter_context(engine_with(config, policy))
        judged = 0
        for (length, sampling), tokens in zip(cases, plain, strict=True):
            result = engine.client.generate(text(length), NEW, sampling)
            assert result.tokens == tokens, (length, sampling)
            assert result.counts is not None
            judged += result.counts.accepted + result.counts.rejected
        together = engine.client.results(
            {engine.client.send(text(length), NEW, sampling): None for length, sampling in cases[1:]}
        )
        assert [result.tokens for result in together.values()] == plain[1:]
        assert judged > 0 or policy[3] == 0, (
            "there are drafts where they are waited for; else it depends on the machine"
        )
        while len(engine.client.status().models) < 2:
            pass  # the smallest one's figures come by way of the other's, once a second


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=3), EVERYTHING], ids=["greedy", "seeded", "everything"])
def test_a_model_above_itself_is_never_rejected_at_any_temperature(
    shallow_model: Path, tmp_path: Path, sampling: Sampling
) -> None:
    config = configuration(shallow_model, (shallow_model, shallow_model), tmp_path, lookahead=3, lead=3)
    with engine_with(config, ((8,), 3, 1, 3)) as engine:
        result = engine.client.generate(text(40), NEW, sampling)
        assert result.counts is not None
        assert result.counts.rejected == 0
        assert result.counts.accepted >= NEW / 2
        middle = engine.client.status().models
        assert all(figures.accepted == figures.judged for figures in middle)


class Recorded:
    """A model whose logits are kept."""

    def __init__(self, model: "speculation.cascade.model.WholeModel") -> None:
        self.forward = model.forward
        self.copy = model.copy
        self.seen: list[Tensor] = []
        self._model = model

    def row_logits(self, hidden: Tensor) -> Tensor:
        self.seen.append(self._model.row_logits(hidden))
        return self.seen[-1]


@pytest.mark.parametrize("behind", [1, 2, 7, 40])
def test_a_model_that_lags_has_no_hole_in_its_keys_and_values(shallow_model: Path, tmp_path: Path, behind: int) -> None:
    model = assemble(configuration(shallow_model, (shallow_model,), tmp_path), 0)
    recorded = model._model = Recorded(model._model)
    prompt, ahead = text(45), text(45 + behind)[45:]
    with torch.inference_mode():
        model._hear(OpenText(0, 1, 45, prompt, GREEDY))
        while not recorded.seen:
            assert model._step()
        own = model._writers[0].text.tokens[45]
        model._hear(WriteText(0, 1, 45, [own, *ahead]))  # the bigger model is further, by one token or many
        recorded.seen.clear()
        while not recorded.seen:
            assert model._step()
    tokens = [*prompt, own, *ahead]
    fresh = Pipeline(shallow_model, (8,), max_len=CONTEXT).frame(0, tokens)
    torch.testing.assert_close(recorded.seen[0][-1], fresh, rtol=1e-4, atol=1e-4)
    assert model._writers[0].text.tokens[: len(tokens)] == tokens
    model._listener.close()


def test_a_slot_that_takes_over_a_text_copies_what_another_one_has_computed(
    shallow_model: Path, tmp_path: Path
) -> None:
    model = assemble(configuration(shallow_model, (shallow_model,), tmp_path, lead=1), 0)
    recorded = model._model = Recorded(model._model)
    prompt = text(100)
    with torch.inference_mode():
        model._hear(OpenText(0, 1, 100, prompt, GREEDY))
        while model._step():
            pass
        filled = model._figures.filled
        model._hear(OpenText(1, 1, 100, prompt, GREEDY))
        while model._step():
            pass
    assert model._figures.filled - filled == 0
    assert torch.allclose(recorded.seen[0], recorded.seen[1], atol=1e-4)
    model._listener.close()


def test_a_request_goes_on_without_models_that_leave_and_with_those_that_come_back(
    shallow_model: Path, family: tuple[Path, ...], tmp_path: Path
) -> None:
    config = configuration(shallow_model, (family[0], shallow_model), tmp_path)
    with local_engine(shallow_model, (4, 4), max_model_len=CONTEXT) as engine:
        engine.drafting.use(NoDrafter())
        plain = engine.client.generate(text(40), 30).tokens
    running = Cascade(config)
    settings: dict[str, Any] = {"max_model_len": CONTEXT, "max_num_seqs": SLOTS, "tokens_per_frame": 4, "emulate": SLOW}
    with local_engine(shallow_model, (4, 4), maker=running.maker(), **settings) as engine:
        client = engine.client
        assert client.generate(text(40), 30).tokens == plain
        running.stop()
        assert client.generate(text(40), 30).tokens == plain
        alone = client.status().stats.counts.drafted
        assert client.generate(text(40), 30).tokens == plain
        assert client.status().stats.counts.drafted == alone, "nobody is there to draft"
        with cascade(config):
            for _ in range(200):
                assert client.generate(text(40), 30).tokens == plain
                if client.status().stats.counts.drafted > alone:
                    break
            else:
                pytest.fail("models that are back are not used")


def test_another_vocabulary_is_refused_by_the_flag(shallow_model: Path, tmp_path: Path) -> None:
    write_pruned_model(shallow_model, tmp_path / "other", ())
    config = tmp_path / "other" / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 512', '"vocab_size": 513'))
    with pytest.raises(ConfigError, match=r"--cascade .*other has a vocabulary of 513 tokens"):
        load(configuration(shallow_model, (tmp_path / "other",), tmp_path), 512)
