"""Digests tell models apart, and nothing else."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from workers.shared.errors import ConfigError
from workers.shared.model_files.digest import file_digest, weights_digest


def test_another_sharding_is_the_same_model_and_other_values_are_not(tmp_path: Path) -> None:
    a, b = np.arange(300, dtype=np.float32), np.arange(7, dtype=np.float16)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    save_file({"a": a, "b": b}, tmp_path / "whole" / "model.safetensors")
    save_file({"a": a}, tmp_path / "parts" / "1.safetensors")
    save_file({"b": b}, tmp_path / "parts" / "2.safetensors")
    index = {"weight_map": {"b": "2.safetensors", "a": "1.safetensors"}}
    (tmp_path / "parts" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "parts")
    save_file({"b": b + 1}, tmp_path / "parts" / "2.safetensors")
    assert weights_digest(tmp_path / "whole") != weights_digest(tmp_path / "parts")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json: No such file"):
        file_digest(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match=r"no model\.safetensors"):
        weights_digest(tmp_path)
