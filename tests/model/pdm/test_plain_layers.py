"""Draft modules of plain layers, for targets whose own layers are of another kind: experts, latents, states."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedConfig

from speculation.decisions.features import FeatureMap
from speculation.drafters.none import NoDrafter
from speculation.drafters.pdm import PdmDrafter
from speculation.pdm.checkpoint import load_module, save_module
from speculation.pdm.module import DraftModule
from speculation.pdm.runtime import DraftRuntime
from speculation.pdm.target import WITH_PLAIN_LAYERS, read_embedding, read_final_norm, read_head, read_target_config
from speculation.training.examples.data import Example
from speculation.training.examples.draws import build_chain
from speculation.training.examples.layout import PackedRows
from speculation.training.teacher import LiveTeacher, load_target
from tests.harness import local_engine
from tests.model.conftest import CONFIGS, write_model
from tests.model.families import LAYERS, family_configs
from tests.model.pdm.modules import random_module
from tests.model.pipeline import Pipeline
from workers.shared.errors import ConfigError

ANCHORS = (0, 2, 4)
TOKENS = tuple(range(20, 27))  # fewer than any window
TARGETS = {
    config.model_type: config
    for config in (*CONFIGS.values(), *family_configs().values())
    if config.model_type in WITH_PLAIN_LAYERS
}


def plain_module(folder: Path) -> DraftModule:
    target = read_target_config(folder)
    anchors = (0, 2, target.num_hidden_layers)
    module = random_module(target, 1, "qwen3", anchors)
    module.final_norm.copy_(read_final_norm(folder, target))
    module.take_head(read_head(folder).float())
    return module.eval()


def test_no_target_is_untested() -> None:
    assert set(TARGETS) == WITH_PLAIN_LAYERS


@torch.no_grad()
@pytest.mark.parametrize("kind", sorted(TARGETS))
def test_training_is_inference_and_the_teacher_sees_what_stages_tap(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    write_model(TARGETS[kind], folder)
    save_module(plain_module(folder), tmp_path / "module", torch.float32)
    module = load_module(tmp_path / "module", folder, "tiny")
    layers, anchors = module.config.target_layers, module.config.anchors
    teacher = LiveTeacher(load_target(folder, torch.float32, "cpu"), anchors, [Example(TOKENS, 1, 0.0, False)])
    targets = teacher.targets([0])

    stage = Pipeline(folder, (layers,), max_len=64).stages[0]  # no more: some rotate longer texts otherwise
    stage.observe(anchors)
    taps: list[torch.Tensor] = []
    stage.forward(0, 0, TOKENS, None, taps)
    embedding = read_embedding(folder, read_target_config(folder), torch.float32)
    tapped = torch.stack([embedding[list(TOKENS)], *taps], dim=1)
    torch.testing.assert_close(tapped, targets.anchors, atol=1e-3, rtol=1e-4)

    features = FeatureMap(anchors, (2, layers - 2))
    packed = PackedRows([[build_chain(features, len(TOKENS) - 1, 2)]], [0], "cpu")
    runtime = DraftRuntime(module, features.split, len(TOKENS))
    drafted = runtime.draft(runtime.plan(len(TOKENS) - 2, len(TOKENS) - 1), tapped)
    assert (module.logits(packed.forward(module, tapped))[0] - drafted).abs().max() <= 1e-4 * drafted.abs().max()


@pytest.mark.parametrize("kind", ["qwen3_5_text", "qwen3_moe"])
def test_the_text_is_that_of_plain_decoding(kind: str, tmp_path: Path) -> None:
    write_model(TARGETS[kind], tmp_path)
    module = plain_module(tmp_path).requires_grad_(False)
    embedding = read_embedding(tmp_path, read_target_config(tmp_path), torch.float32)
    prompt = list(range(30, 51))
    with local_engine(
        tmp_path, (2, LAYERS - 2), module.config.anchors[1:], max_model_len=64, prefill_chunk=8
    ) as engine:
        engine.drafting.use(NoDrafter())
        expected = engine.client.generate(prompt, 24).tokens
        engine.drafting.use(lambda _: PdmDrafter(DraftRuntime(module, engine.split, 64), embedding, module, 64))
        result = engine.client.generate(prompt, 24)
        assert result.tokens == expected
        assert result.counts is not None
        assert result.counts.drafted > 0


def test_layers_of_the_targets_kind_are_refused_with_what_to_do() -> None:
    target: PreTrainedConfig = TARGETS["qwen3_moe"]
    with pytest.raises(ConfigError, match=r"'qwen3_moe': its own layers make none, plain ones do .*--layer-type qwen3"):
        random_module(target, 1, "target", ANCHORS)
    with pytest.raises(ConfigError, match="'granite': the family is not tested with one; use --drafter ngram"):
        random_module(family_configs()["granite"], 1, "qwen3", ANCHORS)
