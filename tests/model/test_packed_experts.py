"""Experts whose weights stay packed, against the same weights unpacked."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig

from tests.model.conftest import VOCABULARY, write_model
from tests.model.families import SIZES
from tests.model.gguf_families import MADE, write_made
from tests.model.pipeline import CPU, Pipeline
from tests.model.quantised import stored_tensors, write_quantised
from workers.model.checkpoint import Checkpoint
from workers.model.loader import Target, load_config
from workers.prepare.gguf.convert import write_converted
from workers.prepare.prepare import check_folder
from workers.prepare.tiny_model import write_tiny_model
from workers.shared.errors import ConfigError
from workers.shared.memory import held_bytes
from workers.shared.model_files.blocks import FIELD
from workers.shared.model_files.facts import read_facts
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.tensor_sizes import EXPERTS
from workers.shared.packed.inventory import read_inventory
from workers.shared.packed.rounding import Rounding

PROMPT = [(37 * i + 11) % VOCABULARY for i in range(21)]
_SIZES = {**SIZES, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
_MANY = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
# How experts lie: one by one under two sets of names, together, together by column, and without gates.
_LYING: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**_MANY, "mlp_only_layers": [0], "norm_topk_prob": True},
    "mixtral": _LOCAL,
    "granitemoe": _LOCAL,
    "gpt_oss": _LOCAL,
    "nemotron_h": {
        "layer_types": ["linear_attention", "moe"],
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 64,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 1,
    },
}
_LAYOUTS = ["int4 in groups of 32", "int8 by channel", "fp8 in blocks", "nvfp4", "mxfp4", "awq", "gptq act-order"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("experts")
    for name, own in _LYING.items():
        write_model(AutoConfig.for_model(name, **{**_SIZES, **own}), root / name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (root / name / file).write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ECHELON_CACHE", str(root / "cache"))
        return {name: check_folder(root / name) for name in _LYING}


def _experts(layers: Any) -> list[nn.Module]:
    return [module for layer in layers for module in layer.modules() if type(module).__name__.endswith("Experts")]


def _unpacked(folder: Path, twin: Path, rounding: Rounding | None) -> Path:
    """The same model in `twin`, with nothing packed."""
    twin.mkdir()
    checkpoint = Checkpoint(folder, rounding)
    save_file({name: checkpoint.tensor(name).contiguous() for name in checkpoint.entries}, twin / "model.safetensors")
    config = read_json(folder / "config.json")
    for field in ("quantization_config", FIELD):
        config.pop(field, None)
    (twin / "config.json").write_text(json.dumps(config))
    return twin


def _loaded(folder: Path, rounding: Rounding | None = None) -> list[nn.Module]:
    """The modules that compute experts; what is said of their memory agrees with what is reported."""
    config = load_config(folder)
    layers = range(config.num_hidden_layers)
    target = Target(folder, config, layers, first=True, last=True, rounding=rounding)
    reported = held_bytes(read_inventory(folder, rounding), "cpu", torch.float32.itemsize)
    assert target.weight_bytes(torch.float32, CPU) == sum(reported.values())
    target.load(torch.float32, CPU)
    modules = [module for layer in target.layers for module in layer.modules()]
    return [module for module in modules if type(module).__name__.endswith("Experts")]


@torch.inference_mode()
def _check(folder: Path, twin: Path, rounding: Rounding | None = None) -> None:
    """Packed experts compute what their weights mean, and a row alone the same bits; so does any split of the model."""
    found, expected = _loaded(folder, rounding), _loaded(_unpacked(folder, twin, rounding))
    assert len(found) == len(expected) > 0
    rows = torch.randn(7, 64)
    chosen = torch.tensor([[(row + first) % 4 for first in (0, 2)] for row in range(7)])
    shares = torch.rand(7, 2)
    for packed, plain in zip(found, expected, strict=True):
        assert all("bias" in name for name, _ in packed.named_parameters())
        together = packed(rows, chosen, shares)
        wanted = plain(rows, chosen, shares)
        assert (together - wanted).norm() < 0.01 * wanted.norm()
        alone = [packed(rows[i : i + 1], chosen[i : i + 1], shares[i : i + 1])[0] for i in range(7)]
        assert all(torch.equal(one, row) for one, row in zip(alone, together, strict=True))
    layers = read_facts(folder).num_hidden_layers
    whole = Pipeline(folder, (layers,), rounding=rounding).greedy_logits(PROMPT, 6, 8)
    split = Pipeline(folder, (1, layers - 1), rounding=rounding).greedy_logits(PROMPT, 6, 8)
    assert all(torch.equal(one, other) for one, other in zip(whole, split, strict=True))


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_experts_of_quantised_checkpoints(models: dict[str, Path], tmp_path: Path, layout: str) -> None:
    folder = tmp_path / "model"
    dense = write_quantised(models["qwen3_moe"], folder, layout)
    check_folder(folder)
    assert {name for name in dense if ".experts." in name} <= Checkpoint(folder).packed.keys()
    _check(folder, tmp_path / "twin")


def test_experts_in_mxfp4(models: dict[str, Path], tmp_path: Path) -> None:
    """As gpt-oss stores them; test_text_tower.py says what they mean."""
    tensors, packed = stored_tensors(models["gpt_oss"]), {}
    for name in [name for name in tensors if EXPERTS.search(name) and not name.endswith("bias")]:
        experts, columns, rows = tensors.pop(name).shape
        shape = (experts, rows, columns // 32)
        packed[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
        packed[f"{name}_scales"] = torch.randint(123, 126, shape, dtype=torch.uint8)
    folder = tmp_path / "model"
    shutil.copytree(models["gpt_oss"], folder, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    save_file({**tensors, **packed}, folder / "model.safetensors")
    config = read_json(folder / "config.json") | {"quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config))
    assert len(Checkpoint(check_folder(folder)).packed) == len(packed) // 2 == 4
    _check(folder, tmp_path / "twin")
    del packed["model.layers.1.mlp.experts.down_proj_scales"]
    save_file({**tensors, **packed}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"lacks model\.layers\.1\.mlp\.experts\.down_proj_scales"):
        check_folder(folder)


def test_experts_of_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    write_tiny_model(tmp_path / "tiny")
    write_made(MADE["qwen3moe"], tmp_path / "tiny", tmp_path / "made.gguf")
    (tmp_path / "model").mkdir()
    write_converted(tmp_path / "made.gguf", tmp_path / "model")
    _check(tmp_path / "model", tmp_path / "twin")


@pytest.mark.parametrize("name", sorted(_LYING))
@pytest.mark.parametrize("rounding", [Rounding("int8", 64), Rounding("int4", 32)])
def test_experts_that_are_rounded_on_load(
    models: dict[str, Path], tmp_path: Path, name: str, rounding: Rounding
) -> None:
    stored, rounded = Checkpoint(models[name]), Checkpoint(models[name], rounding)
    experts = [name for name in stored.entries if EXPERTS.search(name) and not name.endswith("bias")]
    assert experts
    for expert in experts:
        original = stored.tensor(expert)
        assert 0 < (rounded.tensor(expert) - original).norm() < 0.1 * original.norm()
    _check(models[name], tmp_path / "twin", rounding)


def test_an_expert_that_is_not_packed_among_others_that_are(models: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    dense = write_quantised(models["qwen3_moe"], folder, "awq")
    module = "model.layers.1.mlp.experts.2.up_proj."
    tensors = {name: value for name, value in stored_tensors(folder).items() if not name.startswith(module)}
    save_file({**tensors, f"{module}weight": dense[f"{module}weight"]}, folder / "model.safetensors")
    _check(check_folder(folder), tmp_path / "twin")
