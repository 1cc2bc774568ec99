"""A draft module for every family that can be served: borrowed parts compute what the target's own do."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from speculation.decisions.features import FeatureMap
from speculation.pdm.checkpoint import load_module, save_module
from speculation.pdm.config import ModuleConfig
from speculation.pdm.lean import LeanLayer
from speculation.pdm.module import DraftModule
from speculation.pdm.runtime import DraftRuntime
from speculation.pdm.target import WITH_OWN_LAYERS, read_embedding, read_final_norm, read_head, read_target_config
from speculation.pdm.tower import layer_kinds
from speculation.training.examples.data import Example
from speculation.training.examples.draws import build_chain
from speculation.training.examples.layout import PackedRows
from speculation.training.kinds.initial import initialise
from speculation.training.teacher import LiveTeacher, load_target
from tests.model.conftest import CONFIGS, LAYERS

FIRST = 3  # layer from which on the module is the target
TOKENS = tuple(range(20, 27))  # fewer than any window
FAMILIES = sorted({c.model_type: name for name, c in CONFIGS.items() if c.model_type in WITH_OWN_LAYERS}.values())


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, model_folders: dict[str, Path]) -> Path:
    folder: Path = model_folders[request.param]
    return folder


def borrowing_module(folder: Path) -> DraftModule:
    """All of the target behind layer `FIRST`, its own: of finished tokens it computes what the target computes."""
    target = read_target_config(folder)
    borrowed = tuple(range(FIRST, LAYERS))
    config = ModuleConfig(
        target="it",
        target_layers=LAYERS,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        anchors=(0, FIRST),
        layers=len(borrowed),
        head="target",
        frozen_layers=borrowed,
        layer_kinds=layer_kinds(target, borrowed),
    )
    module = DraftModule(config, target, read_final_norm(folder, target))
    initialise(module, folder, init_layers=borrowed, projections="identity", seed=0)
    return module


@torch.no_grad()
@pytest.mark.parametrize("lean", [False, True])
def test_a_module_of_the_targets_own_layers_has_its_logits(family: Path, tmp_path: Path, lean: bool) -> None:
    save_module(borrowing_module(family), tmp_path, torch.float32)
    module = load_module(tmp_path, family, "it")
    if lean:
        module.streamline()
        assert all(isinstance(layer, LeanLayer) for layer in module.spec_layers)
    model = AutoModelForCausalLM.from_pretrained(family, dtype=torch.float32)
    teacher = LiveTeacher(load_target(family, torch.float32, "cpu"), (0, FIRST), [Example(TOKENS, 1, 0.0, False)])
    targets = teacher.targets([0])
    embedding = read_embedding(family, read_target_config(family), torch.float32)
    assert torch.equal(targets.anchors[:, 0], embedding[list(TOKENS)])

    runtime = DraftRuntime(module, (FIRST, LAYERS - FIRST), len(TOKENS))
    runtime.extend(targets.anchors[:3])
    rows = runtime._run(3, module.features(1, targets.anchors[3:]))
    expected = model(torch.tensor([TOKENS])).logits[0]
    assert (module.logits(rows) - expected[3:]).abs().max() <= 1e-4 * expected.abs().max()
    assert torch.equal(targets.best, expected.argmax(-1))
    assert torch.allclose(targets.log_z, expected.logsumexp(-1), atol=1e-4)
    assert read_head(family).shape == (module.config.vocab_size, module.config.hidden_size)


@torch.no_grad()
def test_training_equals_inference(family: Path) -> None:
    module = borrowing_module(family)
    features = FeatureMap(module.config.anchors, (2, 2, 2))
    anchors = torch.randn(12, 2, module.config.hidden_size, generator=torch.Generator().manual_seed(1))
    packed = PackedRows([[build_chain(features, 11, 2)]], [0], "cpu")
    runtime = DraftRuntime(module, features.split, 12)
    drafted = runtime.draft(runtime.plan(10, 11), anchors)
    assert (module.logits(packed.forward(module, anchors))[0] - drafted).abs().max() <= 1e-4 * drafted.abs().max()
