"""Layers with a window that give back what they will not read again: the same bits, in less memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from speculation.drafters.ngram import NgramDrafter
from speculation.drafters.scripted import Recording, Script, ScriptedDrafter
from tests.harness import LocalEngine, local_engine
from tests.model.conftest import CONFIGS, VOCABULARY, write_model
from tests.model.families import family_configs
from tests.model.pipeline import Pipeline
from workers.model import attention
from workers.model.shard import Shard
from workers.shared.memory import stage_needs
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.windows import layer_windows, window_rule

CHUNK, WINDOW, LONGEST = 8, 8, 256
SHARED = [(37 * i + 11) % VOCABULARY for i in range(120)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("windows")
    write_model(CONFIGS["gemma3"], made)
    return made


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[LocalEngine]:
    settings: dict[str, Any] = {"max_model_len": LONGEST, "prefill_chunk": CHUNK, "max_num_seqs": 2}
    with local_engine(folder, (3, 3), **settings) as running:
        assert window_rule(running.config) is not None
        yield running


def plain(folder: Path, prompt: Sequence[int], count: int) -> list[int]:
    """By stages that keep everything."""
    return Pipeline(folder, (6,), max_len=LONGEST).greedy(prompt, count, CHUNK)


def test_long_texts_drafts_and_shared_beginnings_are_those_of_stages_that_keep_everything(
    engine: LocalEngine, folder: Path
) -> None:
    asked = [
        (SHARED, 100, 0),
        ([*SHARED, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3], 40, 120),  # goes on
        ([*SHARED[:100], 7, 7], 30, 96),  # another one that begins alike
        (SHARED[:60], 9, 0),  # so far back no window is kept
        (SHARED, 20, None),
    ]
    for prompt, new, cached in asked:
        expected = plain(folder, prompt, new)
        script = Script([Recording([*prompt, *expected], wrong_probability=0.3)])
        engine.drafting.use(ScriptedDrafter(script, VOCABULARY))
        result = engine.client.generate(prompt, new)
        assert result.tokens == expected
        assert cached in (None, result.cached)


def test_side_by_side(engine: LocalEngine, folder: Path) -> None:
    engine.drafting.use(lambda _: NgramDrafter(3, 1))
    prompts = [[*SHARED, 5], [*SHARED, 6, 6], SHARED[:70], SHARED[::-1]]
    sent = [engine.client.send(prompt, 50) for prompt in prompts]
    results = engine.client.results(dict.fromkeys(sent))
    for identifier, prompt in zip(sent, prompts, strict=True):
        assert results[identifier].tokens == plain(folder, prompt, 50)


def test_pages_behind_the_window_are_given_back_and_planned_so(engine: LocalEngine, folder: Path) -> None:
    config = engine.config
    rule = window_rule(config)
    assert rule is not None
    settings: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu"), "max_len": LONGEST}
    shard = Shard.load(folder, range(6), first=True, last=True, sequences=2, windows=rule, **settings)
    whole = Shard.load(folder, range(6), first=True, last=True, sequences=2, **settings)
    for position in range(LONGEST):
        shard.forward(0, position, [position % VOCABULARY], None)
        whole.forward(0, position, [position % VOCABULARY], None)
    held = [buffers[0] for buffers in _keys(shard)]
    kept = [buffers[0] for buffers in _keys(whole)]
    for layer, (mine, theirs) in enumerate(zip(held, kept, strict=True)):
        assert torch.equal(mine[:, :, -WINDOW:], theirs[:, :, -WINDOW:])
        assert torch.equal(mine, theirs) == (layer in (2, 5)), "layers that see everything keep everything"
    assert shard.kv_bytes == sum(need.kv_bytes(LONGEST) for need in stage_needs(config))
    assert shard.kv_bytes < whole.kv_bytes * 0.6


def _keys(shard: Shard) -> list[tuple[Tensor, Tensor]]:
    return [shard.kv.layers(0)[layer] for layer in range(6)]


@pytest.mark.parametrize("name", sorted({**CONFIGS, **family_configs()}))
def test_no_layer_reads_further_back_than_it_is_said_to(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**CONFIGS, **family_configs()}[name]
    write_model(config, tmp_path)
    said = layer_windows({"num_hidden_layers": config.num_hidden_layers, **read_json(tmp_path / "config.json")})
    seen: dict[int, int | None] = {}
    original = attention.FrameContext.attend

    def attend(self: attention.FrameContext, layer: int, *rest: Any) -> Tensor:
        seen[layer] = rest[-1].window
        return original(self, layer, *rest)

    monkeypatch.setattr(attention.FrameContext, "attend", attend)
    Pipeline(tmp_path, (len(said),), max_len=64).frame(0, [5, 6, 7])
    for layer, window in seen.items():
        assert said[layer] is None or window == said[layer]
    if name in ("gemma3", "mistral-window", "gpt_oss"):
        assert any(said)
