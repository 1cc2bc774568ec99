"""Language models of checkpoints that also see, and configurations that leave things to be filled in."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from tests.model.conftest import CONFIGS, VOCABULARY, write_model
from tests.model.families import SIZES, family_configs
from tests.model.pipeline import Pipeline
from workers.model.checkpoint import Checkpoint
from workers.model.reference import load_reference
from workers.prepare.prepare import check_folder
from workers.shared.errors import ConfigError
from workers.shared.model_files.facts import read_facts

PROMPT = [(37 * i + 11) % VOCABULARY for i in range(12)]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))


def write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def parts(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    tensors: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    return json.loads((folder / "config.json").read_text()), tensors


@pytest.mark.parametrize(
    ("outer", "prefix"), [("gemma3", "language_model.model."), ("gemma3", "model.language_model.")]
)
def test_a_text_tower_is_served_as_text(tmp_path: Path, outer: str, prefix: str) -> None:
    write_model(CONFIGS["gemma3"], tmp_path / "text")
    config, tensors = parts(tmp_path / "text")
    renamed = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
    renamed["vision_tower.layers.0.weight"] = torch.ones(3)
    seeing = write(tmp_path / "seeing", {"model_type": outer, "text_config": config}, renamed)
    prepared = check_folder(seeing)
    assert prepared != seeing
    assert read_facts(prepared).num_hidden_layers == config["num_hidden_layers"]
    expected = Pipeline(tmp_path / "text", (6,)).greedy_logits(PROMPT, 6)
    for one, other in zip(expected, Pipeline(prepared, (2, 4)).greedy_logits(PROMPT, 6), strict=True):
        assert torch.equal(one, other)
    assert check_folder(seeing) == prepared
    with torch.inference_mode():
        reference = load_reference(prepared, torch.float32)(torch.tensor([PROMPT])).logits[0, -1]
    torch.testing.assert_close(reference, expected[0], atol=1e-4, rtol=1e-4)


def test_layers_that_a_rule_describes_are_filled_in(tmp_path: Path) -> None:
    write_model(family_configs()["qwen3_5"], tmp_path / "text")
    config, tensors = parts(tmp_path / "text")
    expected = Pipeline(tmp_path / "text", (4,)).greedy_logits(PROMPT, 6)
    kinds = config.pop("layer_types")
    assert kinds.index("full_attention") == 1
    ruled = write(tmp_path / "ruled", {**config, "full_attention_interval": 2}, tensors)
    with pytest.raises(ConfigError, match=r"model\.layers\.\d+\..* is a tensor|lacks model\.layers"):
        check_folder(ruled)  # another rule than the tensors follow
    (ruled / "config.json").write_text(json.dumps({**config, "layer_types": kinds}))
    found = Pipeline(check_folder(ruled), (1, 3)).greedy_logits(PROMPT, 6)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_numbers_that_are_infinite_are_read(tmp_path: Path) -> None:
    """Of Nemotron-H checkpoints, which have no field for the number of layers, either."""
    write_model(family_configs()["nemotron_h"], tmp_path / "text")
    config, tensors = parts(tmp_path / "text")
    assert "num_hidden_layers" not in config
    folder = write(tmp_path / "model", {**config, "time_step_limit": [0.0, math.inf]}, tensors)
    prepared = check_folder(folder)
    assert read_facts(prepared).num_hidden_layers == 4
    assert Pipeline(prepared, (1, 3)).frame(0, PROMPT).isfinite().all()


def test_a_tower_of_another_family_is_refused(tmp_path: Path) -> None:
    seeing = write(tmp_path / "seeing", {"model_type": "llava", "text_config": {"model_type": "opt"}}, {})
    with pytest.raises(ConfigError, match="its language model is of no family that is served"):
        check_folder(seeing)


def test_experts_one_by_one_and_stacked_are_the_same_model(tmp_path: Path) -> None:
    write_model(family_configs()["qwen3_moe"], tmp_path / "single")
    config, tensors = parts(tmp_path / "single")
    assert "model.layers.0.mlp.experts.3.gate_proj.weight" in tensors
    experts = range(config.get("num_experts") or config["num_local_experts"])
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}.mlp.experts."
        if f"{name}0.up_proj.weight" not in tensors:
            continue
        each = {
            part: torch.stack([tensors.pop(f"{name}{expert}.{part}.weight") for expert in experts])
            for part in ("gate_proj", "up_proj", "down_proj")
        }
        tensors[f"{name}gate_up_proj"] = torch.cat([each["gate_proj"], each["up_proj"]], dim=1)
        tensors[f"{name}down_proj"] = each["down_proj"]
    stacked = write(tmp_path / "stacked", config, tensors)
    one = Pipeline(tmp_path / "single", (4,)).greedy_logits(PROMPT, 4)
    other = Pipeline(check_folder(stacked), (2, 2)).greedy_logits(PROMPT, 4)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_experts_in_mxfp4_are_what_the_format_says(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_local_experts": 3, "num_experts_per_tok": 2}
    config = AutoConfig.for_model("gpt_oss", **{**SIZES, **sizes, "head_dim": 16, "num_hidden_layers": 2})
    write_model(config, tmp_path / "unpacked")
    said, tensors = parts(tmp_path / "unpacked")
    packed = dict(tensors)
    random = np.random.default_rng(5)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors[name].shape
        blocks = random.integers(0, 256, (experts, rows, columns // 32, 16), dtype=np.uint8)
        scales = random.integers(123, 126, (experts, rows, columns // 32), dtype=np.uint8)
        numbers = np.zeros((experts, columns, rows), dtype=np.float32)
        for expert, row, block, byte in np.ndindex(*blocks.shape):
            for half in range(2):
                code = int(blocks[expert, row, block, byte]) >> 4 * half & 15
                exponent, mantissa = code >> 1 & 3, code & 1
                size = (1 + mantissa / 2) * 2.0 ** (exponent - 1) if exponent else mantissa / 2
                factor = 2.0 ** (int(scales[expert, row, block]) - 127)
                numbers[expert, 32 * block + 2 * byte + half, row] = (-1 if code >> 3 else 1) * size * factor
        tensors[name] = torch.from_numpy(numbers)
        del packed[name]
        packed |= {f"{name}_blocks": torch.from_numpy(blocks), f"{name}_scales": torch.from_numpy(scales)}
    plain = write(tmp_path / "plain", said, tensors)
    folder = write(tmp_path / "packed", {**said, "quantization_config": {"quant_method": "mxfp4"}}, packed)
    expected, found = Checkpoint(check_folder(plain)), Checkpoint(check_folder(folder))
    assert set(found.entries) == set(expected.entries)
    assert all(torch.equal(found.tensor(name), expected.tensor(name)) for name in found.entries)


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    write_model(family_configs()["mixtral"], tmp_path / "whole")
    config, tensors = parts(tmp_path / "whole")
    name = next(name for name in tensors if ".experts.4." in name and ".w3." in name)
    del tensors[name]
    with pytest.raises(ConfigError, match=r"experts\.gate_up_proj"):
        check_folder(write(tmp_path / "lacking", config, tensors))
