"""Sizes from safetensors headers."""

import json
import struct
from pathlib import Path

import pytest

from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import (
    active_experts,
    layer_bytes,
    read_header,
    tensor_entries,
    tensor_files,
    text_names,
)


def write_safetensors(path: Path, sizes: dict[str, int]) -> None:
    """A file whose header names U8 tensors of these sizes, without their data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded)


TIED = {
    "model.embed_tokens.weight": 1000,
    "model.layers.1.mlp.up_proj.weight": 7,
    "model.layers.0.mlp.up_proj.weight": 5,
    "model.layers.0.mlp.down_proj.weight": 6,
    "model.norm.weight": 2,
}


def test_tied_head_weighs_as_much_as_the_embedding(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", TIED)
    assert layer_bytes(tmp_path) == ([11, 7], 1002)


def test_untied_head_counts_instead_of_the_embedding(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {**TIED, "lm_head.weight": 300})
    assert layer_bytes(tmp_path) == ([11, 7], 302)


def test_several_files_with_an_index(tmp_path: Path) -> None:
    names = list(TIED)
    parts = {"a.safetensors": names[:2], "b.safetensors": names[2:]}
    for file, part in parts.items():
        write_safetensors(tmp_path / file, {name: TIED[name] for name in part})
    weight_map = {name: file for file, part in parts.items() for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert layer_bytes(tmp_path) == ([11, 7], 1002)
    assert tensor_files(tmp_path)[names[0]] == tmp_path / "a.safetensors"
    assert {name: entry.nbytes for name, entry in tensor_entries(tmp_path).items()} == TIED

    weight_map["model.layers.2.mlp.up_proj.weight"] = "b.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ConfigError, match=r"b\.safetensors: lacks model\.layers\.2"):
        layer_bytes(tmp_path)

    del weight_map["model.layers.2.mlp.up_proj.weight"], weight_map["model.norm.weight"]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ConfigError, match=r"b\.safetensors: holds model\.norm\.weight, which the index does not name"):
        layer_bytes(tmp_path)

    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"b\.safetensors: not a readable safetensors file: .*No such file"):
        layer_bytes(tmp_path)


@pytest.mark.parametrize(
    "sizes",
    [
        {"model.embed_tokens.weight": 1, "transformer.h.0.attn.weight": 5},
        {**TIED, "model.layers.3.mlp.up_proj.weight": 7},
        {name: size for name, size in TIED.items() if "embed" not in name},
    ],
)
def test_other_layouts_are_refused(tmp_path: Path, sizes: dict[str, int]) -> None:
    write_safetensors(tmp_path / "model.safetensors", sizes)
    with pytest.raises(ConfigError, match=str(tmp_path)):
        layer_bytes(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x01", struct.pack("<Q", 1 << 60), struct.pack("<Q", 4) + b"{]", struct.pack("<Q", 14) + b'{"a": {"b":1}}'],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match="safetensors file"):
        read_header(tmp_path / "model.safetensors")


def test_folders_without_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model\.safetensors"):
        layer_bytes(tmp_path)
    for content in ({}, {"weight_map": ["a"]}, {"weight_map": {"a": 1}}):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=r"index\.json: weight_map must say"):
            layer_bytes(tmp_path)


def test_of_experts_those_count_that_a_token_goes_to(tmp_path: Path) -> None:
    assert active_experts({"num_experts": 128, "num_experts_per_tok": 8}) == 1 / 16
    assert active_experts({"n_routed_experts": 4, "num_experts_per_tok": 1}) == 1 / 4
    assert active_experts({"num_local_experts": 0, "num_experts_per_tok": 2}) == 1


def test_a_language_model_under_a_prefix_goes_by_its_own_names() -> None:
    names = ["language_model.model.norm.weight", "language_model.lm_head.weight", "vision_tower.layers.0.weight"]
    assert text_names(names) == {"model.norm.weight": names[0], "lm_head.weight": names[1]}
    assert text_names(["model.norm.weight", "mtp.x"]) == {"model.norm.weight": "model.norm.weight", "mtp.x": "mtp.x"}
