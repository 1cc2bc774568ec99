"""Checkpoints that are not what their config.json says are refused before anything is loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from workers.prepare.tiny_model import write_tiny_model
from workers.shared.errors import ConfigError
from workers.shared.model_files.expected import check_tensors

WEIGHTS = "model.safetensors"
UP = "model.layers.3.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return folder


def change_config(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


def change_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def test_what_config_calls_for_is_accepted(folder: Path) -> None:
    check_tensors(folder)
    change_tensors(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8)}))
    check_tensors(folder)
    change_config(folder, tie_word_embeddings=True)
    change_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    check_tensors(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors: tensors.pop(UP), f"lacks {UP}"),
        (lambda tensors: tensors.pop("lm_head.weight"), "lacks lm_head.weight"),
        (
            lambda tensors: tensors.update({UP: np.ones((3, 4))}),
            rf"{UP} is \[3, 4\], but config.json calls for \[128, 64\]",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": np.ones(64)}),
            "q_proj.bias is a tensor",
        ),
    ],
)
def test_missing_misshapen_and_superfluous_tensors_are_named(
    folder: Path, change: Callable[[dict[str, np.ndarray]], object], reason: str
) -> None:
    change_tensors(folder, change)
    with pytest.raises(ConfigError, match=reason):
        check_tensors(folder)


def test_a_configuration_of_another_size_is_refused(folder: Path) -> None:
    change_config(folder, num_hidden_layers=17)
    with pytest.raises(ConfigError, match=r"lacks model\.layers\.16"):
        check_tensors(folder)
    change_config(folder, num_hidden_layers=15)
    with pytest.raises(ConfigError, match=r"model\.layers\.15\.\S+ is a tensor that config\.json does not call for"):
        check_tensors(folder)


@pytest.mark.parametrize("kept", [0, 5, 2000, -1])
def test_truncated_files_are_refused(folder: Path, kept: int) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:kept])
    with pytest.raises(ConfigError, match=r"model\.safetensors: (cut short|not a readable)"):
        check_tensors(folder)


def test_sizes_that_contradict_shapes_are_refused(folder: Path, tmp_path: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    damaged = shutil.copytree(folder, tmp_path / "damaged") / WEIGHTS
    damaged.write_bytes(whole.replace(b'"shape":[128,64]', b'"shape":[129,64]', 1))
    with pytest.raises(ConfigError, match="not as many as F32"):
        check_tensors(damaged.parent)
    damaged.write_bytes(whole.replace(b'"dtype":"F32"', b'"dtype":"F33"', 1))
    with pytest.raises(ConfigError, match="dtype F33"):
        check_tensors(damaged.parent)
