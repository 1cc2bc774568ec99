"""What a draft module takes is known before it is loaded, and refused where it does not fit."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

import speculation.drafters.load_pdm
from speculation.pdm.checkpoint import load_module, save_module
from speculation.pdm.config import ModuleConfig
from speculation.pdm.module import DraftModule
from speculation.pdm.target import read_target_config
from tests.harness import inproc_endpoints
from tests.model.pdm.conftest import HIDDEN, LAYERS, VOCAB
from workers.shared.config import DrafterConfig, EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.memory import module_bytes


def engine(module: Path, target: Path, length: int = 100) -> EngineConfig:
    drafter = DrafterConfig("pdm", module=str(module), module_target="tiny")
    return EngineConfig(str(target), (4, 4), inproc_endpoints(2), max_model_len=length, max_num_seqs=3, drafter=drafter)


@pytest.mark.parametrize("head", ["own", "target"])
@pytest.mark.parametrize("ids", [None, (3, 7, 200)])
def test_the_estimate_is_what_is_allocated(
    target_config: LlamaConfig, target_folder: Path, tmp_path: Path, head: str, ids: tuple[int, ...] | None
) -> None:
    config = ModuleConfig(
        "tiny",
        LAYERS,
        HIDDEN,
        VOCAB,
        (0, 4),
        3,
        head=head,
        frozen_layers=(6, 7),
        draft_token_ids=ids,  # type: ignore[arg-type]
    )
    save_module(DraftModule(config, target_config, torch.ones(HIDDEN)), tmp_path)
    weights, per_position = module_bytes(tmp_path, engine(tmp_path, target_folder))
    module = load_module(tmp_path, target_folder, "tiny")
    embedding = VOCAB * HIDDEN
    assert weights == 4 * (sum(parameter.numel() for parameter in module.parameters()) + embedding)
    anchors = 2 * HIDDEN
    assert per_position == module.new_cache(10).nbytes // 10 + 4 * anchors
    assert read_target_config(target_folder).num_hidden_layers == LAYERS


def test_a_module_that_does_not_fit_is_refused_before_it_is_loaded(
    target_config: LlamaConfig, target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModuleConfig("tiny", LAYERS, HIDDEN, VOCAB, (0, 4), 3)
    save_module(DraftModule(config, target_config, torch.ones(HIDDEN)), tmp_path)
    weights, per_position = module_bytes(tmp_path, engine(tmp_path, target_folder))
    free = int((weights + 60 * 3 * per_position) / 0.95) + 1
    monkeypatch.setattr(speculation.drafters.load_pdm, "available_bytes", lambda device: free)
    monkeypatch.setattr(speculation.drafters.load_pdm, "load_module", pytest.fail)
    with pytest.raises(ConfigError, match=r"draft module on cpu .* --max-model-len 60 or less"):
        speculation.drafters.load_pdm.load(engine(tmp_path, target_folder), VOCAB)


def test_what_is_no_module_is_named(target_folder: Path, tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "nothing", "nothing: no such folder"), (target_folder, "anchors")):
        with pytest.raises(ConfigError, match=reason):
            module_bytes(path, engine(path, target_folder))
