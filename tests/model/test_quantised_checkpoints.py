"""Checkpoints that come quantised, and rounding on load, against the same weights unpacked."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.harness import inproc_endpoints
from tests.measure.pruned_model import write_pruned_model
from tests.model.pipeline import CPU, Pipeline
from tests.model.quantised import LAYOUTS, write_quantised
from workers.model.checkpoint import Checkpoint
from workers.model.linear.choose import packed_linear
from workers.model.linear.wide import WIDE_FOUR_BIT
from workers.model.loader import Target, load_config, meta_model
from workers.model.reference import load_reference
from workers.prepare.prepare import check_folder
from workers.prepare.tiny_model import write_tiny_model
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.memory import model_bytes
from workers.shared.model_files.json_file import read_json
from workers.shared.packed.inventory import read_inventory
from workers.shared.packed.rounding import Rounding
from workers.shared.packed.weight import Form

PROMPT = [(37 * i + 11) % 512 for i in range(30)]
QUERIES = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers with biases in attention."""
    root = tmp_path_factory.mktemp("quantised")
    (root / "tiny").mkdir()
    write_tiny_model(root / "tiny")
    folder = root / "source"
    write_pruned_model(root / "tiny", folder, range(2, 16))
    tensors = load_file(folder / "model.safetensors")
    for name in list(tensors):
        if "self_attn" in name:
            tensors[name.replace("weight", "bias")] = torch.randn(len(tensors[name])) * 0.3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = read_json(folder / "config.json") | {"attention_bias": True}
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    return folder


@pytest.fixture(scope="module", params=sorted(LAYOUTS))
def quantised(
    request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    """Each layout in turn: a model folder, and what its weights are."""
    folder = tmp_path_factory.mktemp("layout") / "model"
    dense = write_quantised(source, folder, request.param)
    yield check_folder(folder), dense
    shutil.rmtree(folder)


def test_weights_are_what_the_layout_means(quantised: tuple[Path, dict[str, Tensor]]) -> None:
    folder, dense = quantised
    checkpoint = Checkpoint(folder)
    assert set(checkpoint.entries) == set(dense)
    assert len(checkpoint.packed) == 2 * 7
    for name, expected in dense.items():
        torch.testing.assert_close(checkpoint.tensor(name), expected, rtol=1e-5, atol=1e-5)


def test_products_differ_by_rounding_only(quantised: tuple[Path, dict[str, Tensor]]) -> None:
    folder, dense = quantised
    checkpoint = Checkpoint(folder)
    for name, weight in checkpoint.packed.items():
        layer = packed_linear(weight, next(checkpoint.matrices(name)), None)
        rows = torch.randn(9, weight.shape[1])
        together = layer(rows)
        expected = rows @ dense[name].T
        assert (together - expected).norm() < 0.006 * expected.norm(), name
        assert all(torch.equal(layer(rows[i : i + 1])[0], together[i]) for i in range(9)), name
        many = torch.randn(WIDE_FOUR_BIT + 1, weight.shape[1])
        expected = many @ dense[name].T
        assert (layer(many) - expected).norm() < 0.006 * expected.norm(), name


@torch.inference_mode()
def test_logits_and_bits_for_every_split(quantised: tuple[Path, dict[str, Tensor]]) -> None:
    folder, dense = quantised
    twin = load_reference(folder, torch.float32)
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(parameter, dense[name], rtol=1e-5, atol=1e-5)
    whole = Pipeline(folder, (2,)).greedy_logits(PROMPT, 6)
    reference = twin(torch.tensor([PROMPT])).logits[0, -1]
    assert (whole[0] - reference).norm() < 0.02 * reference.norm()
    split = Pipeline(folder, (1, 1)).greedy_logits(PROMPT, 6)
    assert all(torch.equal(one, other) for one, other in zip(whole, split, strict=True))


def test_memory_is_what_is_reported(quantised: tuple[Path, dict[str, Tensor]]) -> None:
    folder, _ = quantised
    said = Target(folder, load_config(folder), range(2), first=True, last=True).weight_bytes(torch.float32, CPU)
    config = EngineConfig(str(folder), (2,), inproc_endpoints(1), max_model_len=64)
    assert model_bytes(folder, read_inventory(folder), range(2), config, "cpu", first=True, last=True)[0] == said


@pytest.mark.parametrize(
    ("rounding", "layers", "head", "most"),
    [
        (Rounding("int8", 64), Form.CHANNELS, Form.CHANNELS, 0.01),
        (Rounding("int4", 32), Form.PLANES, Form.CHANNELS, 0.09),
        (Rounding("int4", 128), Form.PLANES, Form.CHANNELS, 0.11),
    ],
)
@torch.inference_mode()
def test_rounding_on_load(source: Path, rounding: Rounding, layers: Form, head: Form, most: float) -> None:
    """`most` is the relative error of a matrix; what it makes of logits is measured on a real model."""
    checkpoint, stored = Checkpoint(source, rounding), Checkpoint(source)
    packed = checkpoint.packed
    assert len(packed) == 2 * 7 + 1
    assert {packed[name].form(products=True) for name in packed if "_proj" in name} == {layers}
    assert packed["lm_head.weight"].form(products=True) is head
    twin = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    for name in packed:
        original, rounded = stored.tensor(name), checkpoint.tensor(name)
        assert 0 < (rounded - original).norm() < most * original.norm(), name
        twin.get_parameter(name).copy_(rounded)
    found = Pipeline(source, (1, 1), rounding=rounding).frame(0, PROMPT)
    expected = twin(torch.tensor([PROMPT])).logits[0, -1]
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_a_tied_head_is_rounded_and_its_embedding_is_not(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tied"
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = read_json(folder / "config.json") | {"tie_word_embeddings": True}
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    rounding = Rounding("int8", 64)
    target = Target(check_folder(folder), load_config(folder), range(2), first=True, last=True, rounding=rounding)
    said = target.weight_bytes(torch.float32, CPU)
    target.load(torch.float32, CPU)
    assert target.embedding is not None
    assert target.head is not None
    table = tensors["model.embed_tokens.weight"]
    assert torch.equal(target.embedding(torch.tensor([[3, 500]])), table[[3, 500]][None])
    rows = torch.randn(2, 64)
    expected = rows @ table.T
    assert 0 < (target.head(rows) - expected).norm() < 0.02 * expected.norm()
    engine = EngineConfig(str(folder), (2,), inproc_endpoints(1), max_model_len=64, quantization="int8")
    held = read_inventory(folder, engine.rounding)
    assert model_bytes(folder, held, range(2), engine, "cpu", first=True, last=True)[0] == said


@pytest.mark.parametrize(
    ("layout", "part", "change", "reason"),
    [
        ("awq", "qzeros", None, f"lacks {QUERIES}.qzeros"),
        ("awq", "scales", torch.ones(3, 64), f"{QUERIES}.qzeros is [1, 8]"),
        ("gptq", "qweight", torch.ones(8, 60, dtype=torch.int32), f"{QUERIES}.scales is [2, 64]"),
        ("int4 in groups of 32", "weight_scale", None, f"lacks {QUERIES}.weight_scale"),
        ("fp8 in blocks", "weight_scale_inv", torch.ones(2, 1), f"{QUERIES}.weight_scale_inv is [2, 1]"),
        ("int8 by channel", "weight", torch.ones(64, 32, dtype=torch.int8), f"{QUERIES}.weight is [64, 32]"),
        ("awq", "strange", torch.ones(3), f"{QUERIES}.strange is a tensor that config.json does not call for"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    source: Path, tmp_path: Path, layout: str, part: str, change: Tensor | None, reason: str
) -> None:
    folder = tmp_path / "model"
    write_quantised(source, folder, layout)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(f"{QUERIES}.{part}", None)
    if change is not None:
        tensors[f"{QUERIES}.{part}"] = change
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError) as caught:
        check_folder(folder)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("layout", "part", "rounding"),
    [
        ("awq", "scales", None),
        ("int8 by channel", "weight_scale", None),
        ("nvfp4", "weight_global_scale", None),
        (None, "weight", Rounding("int8", 64)),
        (None, "weight", Rounding("int4", 64)),
    ],
)
def test_values_that_are_no_numbers_are_refused_by_name(
    source: Path, tmp_path: Path, layout: str | None, part: str, rounding: Rounding | None
) -> None:
    folder = tmp_path / "model"
    if layout is None:
        shutil.copytree(source, folder)
    else:
        write_quantised(source, folder, layout)
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{QUERIES}.{part}"].view(-1)[-1] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    target = Target(check_folder(folder), load_config(folder), range(2), first=True, last=True, rounding=rounding)
    with pytest.raises(ConfigError, match=rf"{QUERIES}\.\w+: unpacked, it has values that are infinite or not numbers"):
        target.load(torch.float32, CPU)


def test_modules_that_are_not_quantised_are_served(source: Path, tmp_path: Path) -> None:
    """Whatever the configuration calls it, a module that has a plain weight is not quantised."""
    folder = tmp_path / "model"
    dense = write_quantised(source, folder, "gptq")
    tensors = {name: value for name, value in load_file(folder / "model.safetensors").items() if QUERIES not in name}
    tensors[f"{QUERIES}.weight"] = dense[f"{QUERIES}.weight"].half()
    tensors[f"{QUERIES}.bias"] = dense[f"{QUERIES}.bias"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert len(Checkpoint(check_folder(folder)).packed) == 2 * 7 - 1
    assert Pipeline(folder, (1, 1)).frame(0, PROMPT).isfinite().all()


_LOADING = """
import sys
from pathlib import Path

import torch

from workers.model.loader import Target, load_config
from workers.shared.packed.rounding import Rounding


def anonymous():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


folder = Path(sys.argv[1])
rounding = Rounding(sys.argv[2], 64)
target = Target(folder, load_config(folder), range(4), first=True, last=True, rounding=rounding)
before, seen = anonymous(), []
target.load(torch.float32, torch.device("cpu"), lambda done, total: seen.append(anonymous()))
print(target.weight_bytes(torch.float32, torch.device("cpu")), max(seen) - before)
"""


def _load_apart(folder: Path, name: str) -> tuple[int, int]:
    """Bytes of weights as they are said to be, and the most that a process grew by while it loaded them."""
    command = [sys.executable, "-c", _LOADING, str(folder), name]
    said, grown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.split()
    return int(said), int(grown)


@pytest.mark.parametrize(
    "own",
    [
        {"intermediate_size": 4096},
        {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512},
    ],
    ids=["dense", "experts"],
)
def test_no_process_ever_holds_its_weights_unpacked(source: Path, tmp_path: Path, own: dict[str, Any]) -> None:
    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "head_dim": 128, "attention_bias": False}
    config = read_json(source / "config.json") | sizes | own
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    parameters = meta_model(load_config(tmp_path)).state_dict()
    matrices = {name: torch.randn(tensor.shape, dtype=torch.bfloat16) for name, tensor in parameters.items()}
    save_file(matrices, tmp_path / "model.safetensors", metadata={"format": "pt"})
    target = Target(tmp_path, load_config(tmp_path), range(4), first=True, last=True)
    unpacked = target.weight_bytes(torch.float32, CPU)
    for name, share in (("int8", 0.3), ("int4", 0.2)):
        said, grown = _load_apart(tmp_path, name)
        assert said < share * unpacked
        assert grown < 0.8 * unpacked  # packed weights, a matrix or two in float32, and what the allocator keeps
