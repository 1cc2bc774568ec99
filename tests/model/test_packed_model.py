"""A model whose weights stay packed, against the same weights unpacked."""

from pathlib import Path

import pytest
import torch

from speculation.pdm.target import read_embedding, read_head, read_tensor
from tests.harness import inproc_endpoints
from tests.measure.pruned_model import write_pruned_model
from tests.model.gguf_file import write_gguf
from tests.model.pipeline import CPU, Pipeline
from workers.model.loader import Target, load_config
from workers.model.reference import load_reference
from workers.prepare.gguf.convert import write_converted
from workers.prepare.prepare import check_folder
from workers.prepare.tiny_model import write_tiny_model
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.memory import model_bytes
from workers.shared.model_files.tensor_sizes import EMBEDDING, layer_bytes
from workers.shared.packed.inventory import read_inventory
from workers.shared.packed.rounding import Rounding

PROMPT = [(37 * i + 11) % 512 for i in range(30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of Q4_1, embedding and head in Q8_0: the kinds of the default model."""
    root = tmp_path_factory.mktemp("packed")
    for name in ("tiny", "model"):
        (root / name).mkdir()
    write_tiny_model(root / "tiny")
    write_gguf(root / "tiny", root / "packed.gguf", kinds=("Q8_0", "Q4_1"))
    write_converted(root / "packed.gguf", root / "model")
    return check_folder(root / "model")


@torch.inference_mode()
def test_logits_differ_from_the_unpacked_twin_by_rounding_only(folder: Path) -> None:
    expected = load_reference(folder, torch.float32)(torch.tensor([PROMPT])).logits[0]
    pipeline = Pipeline(folder, (1, 1))
    for length in (1, 2, 30):
        found = pipeline.frame(0, PROMPT[:length])
        assert (found - expected[length - 1]).norm() < 0.02 * expected[length - 1].norm()


def test_decoding_has_the_same_bits_for_every_split(folder: Path) -> None:
    expected = Pipeline(folder, (2,)).greedy_logits(PROMPT, 12, chunk=8)
    for split in ((1, 1), (1, 1, 0)):
        found = Pipeline(folder, split).greedy_logits(PROMPT, 12, chunk=8)
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True)), split


def test_nothing_is_held_unpacked(folder: Path) -> None:
    target = Target(folder, load_config(folder), range(2), first=True, last=True)
    said = target.weight_bytes(torch.float32, CPU)
    target.load(torch.float32, CPU)
    held = sum(p.nbytes for module in target.layers for p in module.parameters())
    assert held == 4 * 4 * 64, "of the layers only norms are left as they were"
    whole = 4 * (2 * 512 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128) + 5 * 64)
    assert said < whole / 2
    assert sum(layer_bytes(folder)[0]) < said
    config = EngineConfig(str(folder), (2,), inproc_endpoints(1), max_model_len=64)
    reported, _ = model_bytes(folder, read_inventory(folder), range(2), config, "cpu", first=True, last=True)
    assert reported == said, "what the launcher reports"


def test_no_weight_is_a_page_of_a_file(folder: Path, tmp_path: Path) -> None:
    """Such pages are the first that the system takes back from a process that idles."""
    plain = tmp_path
    write_tiny_model(plain)
    kept: list[object] = []
    for model, packing in ((folder, None), (plain, None), (plain, Rounding("int8", 32))):
        target = Target(model, load_config(model), range(2), first=True, last=True, rounding=packing)
        target.load(torch.float32, CPU)
        kept += [target, read_embedding(model, load_config(model), torch.float32)]
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(".safetensors")]
    assert [line for line in mapped if str(folder) in line or str(plain) in line] == []


def test_others_read_the_targets_tensors_unpacked(folder: Path) -> None:
    reference = load_reference(folder, torch.float32)
    assert torch.equal(read_head(folder), reference.lm_head.weight)
    assert torch.equal(read_tensor(folder, EMBEDDING), reference.model.embed_tokens.weight)


def test_a_pruned_model_stays_packed(folder: Path, tmp_path: Path) -> None:
    write_pruned_model(folder, tmp_path, [0])
    check_folder(tmp_path)
    assert Pipeline(tmp_path, (1,)).frame(0, PROMPT).isfinite().all()


def test_unknown_kinds_of_blocks_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    write_pruned_model(folder, tmp_path, [])
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"Q8_0"', '"Q9_9"'))
    with pytest.raises(ConfigError, match=r"packed_tensors: \S+ has blocks of kind Q9_9"):
        check_folder(tmp_path)
