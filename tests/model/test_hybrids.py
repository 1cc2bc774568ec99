"""Recurrent states in the whole engine: rejections anywhere, reuse of prompts, sequences side by side, rounds.

Each compares the logits that the sampler saw with those of a fresh model that computes the text alone, bit by bit.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.none import NoDrafter
from speculation.drafters.scripted import Recording, Script, ScriptedDrafter
from tests.harness import LocalEngine, local_engine
from tests.model.conftest import VOCABULARY, write_model
from tests.model.families import family_configs
from tests.model.identity import RecordingSampler, recorded_logits
from tests.model.pipeline import Pipeline
from workers.model.shard import Shard
from workers.shared.config import EngineConfig
from workers.shared.errors import OutOfStep
from workers.shared.memory import stage_needs

HYBRIDS = ["qwen3_5", "lfm2", "falcon_h1"]
SPLIT = (1, 2, 1)
CHUNK = 8
PROMPT = [(37 * i + 11) % VOCABULARY for i in range(2 * CHUNK + 3)]
NEW = 14


@pytest.fixture(scope="module", params=HYBRIDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    write_model(family_configs()[request.param], folder)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[LocalEngine]:
    settings = {"max_model_len": 128, "prefill_chunk": CHUNK, "max_num_seqs": 2}
    with recorded_logits(), local_engine(folder, SPLIT, **settings) as running:
        yield running


def fresh(folder: Path, prompt: list[int], new: int = NEW) -> list[torch.Tensor]:
    return Pipeline(folder, (4,), max_len=128).greedy_logits(prompt, new, CHUNK)


def check(prompt: list[int], expected: list[torch.Tensor], tokens: list[int]) -> None:
    assert tokens == [int(logits.argmax()) for logits in expected]
    for step, logits in enumerate(expected):
        assert torch.equal(RecordingSampler.seen[len(prompt) + step], logits), f"position {len(prompt) + step}"


def test_rejections_anywhere_even_two_in_a_row(engine: LocalEngine, folder: Path) -> None:
    expected = fresh(folder, PROMPT)
    text = PROMPT + [int(logits.argmax()) for logits in expected]
    first = len(PROMPT) + 1
    single = [{position} for position in range(first, first + NEW - 2)]  # among them the ends of chunks
    for wrong in [set(), *single, *({p, p + 1} for p in range(first, first + 6))]:
        engine.drafting.use(ScriptedDrafter(Script([Recording(text, frozenset(wrong))]), VOCABULARY))
        RecordingSampler.forget()
        check(PROMPT, expected, engine.client.generate(PROMPT, NEW).tokens)


def test_a_prompt_begins_where_an_earlier_chunk_ended(engine: LocalEngine, folder: Path) -> None:
    engine.drafting.use(ScriptedDrafter(Script([Recording(PROMPT, wrong_probability=1.0)]), VOCABULARY))
    longer = [*PROMPT, *range(3 * CHUNK)]
    other = [*longer[: 3 * CHUNK], 5, 6, 7]  # a chunk of it is the longer one's
    for prompt, cached in ((PROMPT, None), (longer, 2 * CHUNK), (other, 3 * CHUNK), (longer, 3 * CHUNK)):
        RecordingSampler.forget()
        result = engine.client.generate(prompt, 4)
        check(prompt, fresh(folder, prompt, 4), result.tokens)
        assert cached is None or result.cached == cached


def test_side_by_side_with_drafts(engine: LocalEngine, folder: Path) -> None:
    prompts = [PROMPT[:11], PROMPT[::-1]]
    engine.drafting.use(lambda slot: NgramDrafter(3, 1))
    sent = [engine.client.send(prompt, 30) for prompt in prompts]
    results = engine.client.results(dict.fromkeys(sent))
    for identifier, prompt in zip(sent, prompts, strict=True):
        assert results[identifier].tokens == [int(logits.argmax()) for logits in fresh(folder, prompt, 30)]


def test_rounds_of_several_drafts_leave_a_state_for_each(folder: Path) -> None:
    expected = fresh(folder, PROMPT, 20)
    text = PROMPT + [int(logits.argmax()) for logits in expected]
    with local_engine(folder, (2, 2), drafts=3, max_model_len=128, prefill_chunk=CHUNK) as rounds:
        for wrong in (0.0, 0.4, 1.0):
            rounds.drafting.use(ScriptedDrafter(Script([Recording(text, wrong_probability=wrong)]), VOCABULARY))
            assert rounds.client.generate(PROMPT, 20).tokens == text[len(PROMPT) :]


def test_what_is_kept_is_what_is_planned(folder: Path, engine: LocalEngine) -> None:
    config: EngineConfig = engine.config
    for stage in range(config.stages):
        shard = Shard.load(
            folder,
            config.layers(stage),
            first=stage == 0,
            last=stage == config.stages - 1,
            dtype=torch.float32,
            device=torch.device("cpu"),
            max_len=config.max_model_len,
            sequences=config.max_num_seqs,
            ahead=config.tokens_in_flight,
        )
        need = stage_needs(config)[stage]
        assert need.weight_bytes == shard.weight_bytes + shard.state_bytes
        assert need.kv_bytes(config.max_model_len) == shard.kv_bytes


def test_a_state_that_is_not_kept_stops_the_frame(folder: Path) -> None:
    pipeline = Pipeline(folder, (4,), max_len=128)
    pipeline.frame(0, PROMPT)
    with pytest.raises(OutOfStep, match="no state is kept behind position 4"):
        pipeline.frame(5, [1])


def test_without_drafts_the_engine_is_plain_decoding(engine: LocalEngine, folder: Path) -> None:
    engine.drafting.use(NoDrafter())
    RecordingSampler.forget()
    check(PROMPT, fresh(folder, PROMPT), engine.client.generate(PROMPT, NEW).tokens)
