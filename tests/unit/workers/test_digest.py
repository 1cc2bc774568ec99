"""Digests tell models apart, and nothing else."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from workers.prepare.tiny_model import write_tiny_model
from workers.shared.errors import ConfigError
from workers.shared.model_files.digest import differences, read_digest


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return folder


def changed(tiny: Path, folder: Path) -> list[str]:
    """Names of the parts in which the two folders differ."""
    return [difference.partition(" ")[0] for difference in differences(read_digest(tiny), read_digest(folder))]


def test_another_path_and_another_sharding_are_the_same_model(tmp_path: Path) -> None:
    a, b = np.arange(300, dtype=np.float32), np.arange(7, dtype=np.float16)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "tokenizer.json").write_text("{}")
    save_file({"a": a, "b": b}, tmp_path / "whole" / "model.safetensors")
    save_file({"a": a}, tmp_path / "parts" / "1.safetensors")
    save_file({"b": b}, tmp_path / "parts" / "2.safetensors")
    index = {"weight_map": {"b": "2.safetensors", "a": "1.safetensors"}}
    (tmp_path / "parts" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert changed(tmp_path / "whole", tmp_path / "parts") == []
    save_file({"b": b + 1}, tmp_path / "parts" / "2.safetensors")
    assert changed(tmp_path / "whole", tmp_path / "parts") == ["weights"]


def test_each_part_is_told_apart(tiny: Path, tmp_path: Path) -> None:
    for file, part in (("config.json", "config"), ("tokenizer.json", "tokenizer")):
        folder = tmp_path / part
        shutil.copytree(tiny, folder)
        assert changed(tiny, folder) == []
        (folder / file).write_text((folder / file).read_text() + " ")
        assert changed(tiny, folder) == [part]


def test_a_missing_file_is_named(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json: No such file"):
        read_digest(folder)
