"""What a draft module starts from."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from speculation.pdm.module import DraftModule
from speculation.training.examples.data import Example
from speculation.training.kinds.initial import fit_projections, initialise
from speculation.training.teacher import Targets
from tests.model.pdm.conftest import HIDDEN
from tests.model.pdm.modules import random_module
from workers.shared.errors import ConfigError

LAST = (5, 6, 7)  # reads anchor 5, the fourth


class LinearTeacher:
    """Anchors that are exact linear functions of the ones before, so that a fit can be perfect."""

    def __init__(self) -> None:
        self.map = torch.randn(2 * HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(2))

    def targets(self, indices: list[int]) -> Targets:
        generator = torch.Generator().manual_seed(indices[0])
        anchors = torch.randn(200, 5, HIDDEN, generator=generator)
        anchors[:, 3] = anchors[:, :2].flatten(1) @ self.map
        anchors[0] *= 1000.0
        anchors[0, 3] = 1.0
        nothing = torch.zeros(200)
        return Targets(anchors, anchors[:, 4], nothing, nothing.long())


@pytest.fixture
def module(target_config: LlamaConfig) -> DraftModule:
    return random_module(target_config, layers=3)


def projections(module: DraftModule) -> list[Tensor]:
    return [projection.weight for projection in module.aggr_projs]


def test_the_tower_and_the_head_start_from_the_target(
    module: DraftModule, target_folder: Path, target_model: LlamaForCausalLM
) -> None:
    initialise(module, target_folder, init_layers=LAST, projections="identity", seed=0)
    for layer, source in zip(module.spec_layers, LAST, strict=True):
        for name, parameter in target_model.model.layers[source].named_parameters():
            assert torch.equal(dict(layer.named_parameters())[name], parameter)
    assert torch.equal(module.lm_head.weight, target_model.lm_head.weight)


def test_identity_hands_on_the_nearest_anchor(module: DraftModule, target_folder: Path) -> None:
    initialise(module, target_folder, init_layers=LAST, projections="identity", seed=0)
    anchors = torch.randn(4, 5, HIDDEN)
    for kind, block in enumerate([0, 1, 2, 3, 3]):
        assert torch.equal(module.features(kind, anchors), anchors[:, block])


def test_the_fit_finds_a_linear_relation_and_leaves_deep_types(module: DraftModule, target_folder: Path) -> None:
    initialise(module, target_folder, init_layers=LAST, projections="fit", seed=0)
    deep = [weight.clone() for weight in projections(module)[3:]]
    teacher = LinearTeacher()
    examples = [Example((0,) * 200, 1, 0.0, held_out=number == 0) for number in range(4)]
    fit_projections(module, teacher, examples, LAST[0])  # type: ignore[arg-type]
    assert all(torch.equal(*pair) for pair in zip(projections(module)[3:], deep, strict=True))
    fresh = teacher.targets([99]).anchors[1:]
    wanted = fresh[:, 3]

    def error(kind: int) -> float:
        return ((module.features(kind, fresh) - wanted).norm() / wanted.norm()).item()

    assert error(1) < 0.05
    assert error(2) < 0.05
    assert 0.5 < error(0) < 1.0


def test_a_seed_decides_the_noise(module: DraftModule, target_folder: Path) -> None:
    starts = []
    for seed in (0, 0, 1):
        initialise(module, target_folder, init_layers=(), projections="normal", seed=seed)
        starts.append(projections(module)[0].clone())
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_a_layer_that_the_target_lacks_is_refused(module: DraftModule, target_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"layers 0\.\.7"):
        initialise(module, target_folder, init_layers=(6, 7, 8), projections="identity", seed=0)
