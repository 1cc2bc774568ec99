"""Files of a draft module: what was written is what is loaded, or nothing is."""

import os
import random
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from speculation.pdm.authors import read_authors
from speculation.pdm.checkpoint import load_module, save_module
from speculation.pdm.config import read_config
from speculation.pdm.replacing import replace_bytes, replacing
from tests.model.pdm.authors_file import write_authors
from tests.model.pdm.conftest import LAYERS, VOCAB
from tests.model.pdm.modules import random_module
from workers.shared.errors import ConfigError


class TestFiles:
    def test_a_file_is_replaced_whole_with_the_mode_of_any_new_file(
        self, target_config: LlamaConfig, tmp_path: Path
    ) -> None:
        (tmp_path / "ordinary").write_text("")
        save_module(random_module(target_config), tmp_path / "m")
        for path in (tmp_path / "m").iterdir():
            assert path.stat().st_mode == (tmp_path / "ordinary").stat().st_mode
        assert sorted(os.listdir(tmp_path / "m")) == ["config.json", "model.safetensors"]

    def test_what_fails_leaves_the_old_content(self, tmp_path: Path) -> None:
        replace_bytes(tmp_path / "file", b"old")

        def interrupted() -> None:
            with replacing(tmp_path / "file") as new:
                new.write_bytes(b"ha")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert (tmp_path / "file").read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]


class TestFolder:
    def test_flipped_bytes_are_noticed(self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path) -> None:
        save_module(random_module(target_config, layers=1), tmp_path)
        path = tmp_path / "model.safetensors"
        good = path.read_bytes()
        header = 8 + int.from_bytes(good[:8], "little")
        for place in random.Random(0).sample(range(header, len(good)), 20):
            path.write_bytes(good[:place] + bytes([good[place] ^ 16]) + good[place + 1 :])
            with pytest.raises(ConfigError, match=r"model\.safetensors|holds NaN"):
                load_module(tmp_path, target_folder, "tiny")
        path.write_bytes(good)
        load_module(tmp_path, target_folder, "tiny")

    @pytest.mark.parametrize("content", [b"", b"text\n", b"\xff" * 64])
    def test_what_is_no_weight_file_is_named(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path, content: bytes
    ) -> None:
        save_module(random_module(target_config, layers=1), tmp_path)
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(ConfigError, match=r"model\.safetensors"):
            load_module(tmp_path, target_folder, "tiny")

    def test_weights_of_another_module_are_noticed(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path
    ) -> None:
        module = random_module(target_config)
        save_module(module, tmp_path)
        saved = read_config(tmp_path)
        other = msgspec.structs.replace(saved, anchors=(0, 1, 2, 3, 8))
        (tmp_path / "config.json").write_bytes(msgspec.json.encode(other))
        with pytest.raises(ConfigError, match=r"of another config\.json"):
            load_module(tmp_path, target_folder, "tiny")
        renamed = msgspec.structs.replace(saved, target="renamed", stages=(2, 3))
        (tmp_path / "config.json").write_bytes(msgspec.json.encode(renamed))
        load_module(tmp_path, target_folder, "renamed")

    @pytest.mark.parametrize("value", [float("nan"), float("-inf")])
    def test_values_that_are_no_numbers(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path, value: float
    ) -> None:
        module = random_module(target_config)
        with torch.no_grad():
            module.aggr_projs[1].weight[3, 4] = value
        save_module(module, tmp_path)
        with pytest.raises(ConfigError, match=r"aggr_projs\.1\.weight holds NaN or infinite"):
            load_module(tmp_path, target_folder, "tiny")

    def test_whole_numbers_are_no_weights(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path
    ) -> None:
        save_module(random_module(target_config), tmp_path)
        tensors = load_file(tmp_path / "model.safetensors")
        save_file({name: tensor.to(torch.int8) for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
        with pytest.raises(ConfigError, match=r"is torch\.int8"):
            load_module(tmp_path, target_folder, "tiny")


class TestAuthorsFile:
    def test_flipped_bytes_are_noticed(self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "head.pt"
        write_authors(random_module(target_config, 1, "qwen3"), path, stages=4)
        good = path.read_bytes()
        expected = read_authors(path, target_folder, "tiny").state_dict()
        for place in random.Random(1).sample(range(len(good)), 150):
            path.write_bytes(good[:place] + bytes([good[place] ^ 16]) + good[place + 1 :])
            try:
                state = read_authors(path, target_folder, "tiny").state_dict()
            except ConfigError:
                continue
            # A byte that nothing reads, such as padding or a date.
            assert all(torch.equal(state[name], tensor) for name, tensor in expected.items()), place

    @pytest.mark.parametrize("content", [b"", b"just a text\n", b"PK\x03\x04 and no more"])
    def test_what_is_no_archive(self, target_folder: Path, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "head.pt").write_bytes(content)
        with pytest.raises(ConfigError, match=r"head\.pt: not a draft module file"):
            read_authors(tmp_path / "head.pt", target_folder, "tiny")

    def test_a_missing_file(self, target_folder: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"head\.pt.*No such file"):
            read_authors(tmp_path / "head.pt", target_folder, "tiny")

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"num_aggr_types": 4}, "num_aggr_types is 4, but .* 5"),
            ({"draft_vocab_size": 100}, "draft_vocab_size is 100, but .* 3"),
            ({"draft_token_ids": None}, f"draft_vocab_size is 3, but .* {VOCAB}"),
            ({"num_layers": 32}, f"num_layers is 32, but .* {LAYERS}"),
            ({"stage_layers": [2, 2, 2]}, "stage_layers is"),
            ({"stage_layers": [3, 2, 2, 2]}, "stage_layers is"),
            ({"stage_layers": "2;2;2;0"}, "stage_layers is"),
            ({"stage_layers": "a;b"}, "stage_layers is"),
            ({"num_spec_layers": "two"}, r"config: .*num_spec_layers"),
            ({"num_spec_layers": 0}, "0 layers"),
        ],
        ids=str,
    )
    def test_fields_that_contradict_each_other(
        self,
        target_config: LlamaConfig,
        target_folder: Path,
        tmp_path: Path,
        change: dict[str, object],
        reason: str,
    ) -> None:
        with pytest.raises(ConfigError, match=reason):
            read_authors(self.edited(target_config, tmp_path, change), target_folder, "tiny")

    @pytest.mark.parametrize("change", [{"stage_layers": "1;3;2;2"}, {"stage_layers": [2, 2, 2, 2]}, {"num_layers": 8}])
    def test_fields_that_agree(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path, change: dict[str, object]
    ) -> None:
        read_authors(self.edited(target_config, tmp_path, change), target_folder, "tiny")

    def test_one_layer_is_meant_where_no_number_is_said(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path
    ) -> None:
        path = self.edited(target_config, tmp_path, {"num_spec_layers": None})
        assert read_authors(path, target_folder, "tiny").config.layers == 1

    def test_weights_that_are_no_tensors(self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path) -> None:
        path = self.edited(target_config, tmp_path, {})
        content = torch.load(path, weights_only=True)
        content["state_dict"]["lm_head.weight"] = [1.0]
        torch.save(content, path)
        with pytest.raises(ConfigError, match=r"lm_head\.weight is list"):
            read_authors(path, target_folder, "tiny")

    @staticmethod
    def edited(target_config: LlamaConfig, folder: Path, change: dict[str, object]) -> Path:
        """A file of one layer whose config has `change`; None takes the entry away."""
        module = random_module(target_config, 1, "qwen3", draft_token_ids=(3, 7, 200))
        write_authors(module, folder / "head.pt", stages=4)
        content = torch.load(folder / "head.pt", weights_only=True)
        content["config"] = {name: value for name, value in (content["config"] | change).items() if value is not None}
        torch.save(content, folder / "head.pt")
        return folder / "head.pt"
