"""Draft module folders and the authors' files (specification, facts 7, 8 and 12)."""

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors import safe_open
from transformers import LlamaConfig, Qwen3MoeConfig

from speculation.pdm.authors import read_authors
from speculation.pdm.checkpoint import load_module, save_module
from speculation.pdm.config import ModuleConfig
from speculation.pdm.module import DraftModule
from speculation.pdm.target import read_head, target_name
from speculation.pdm.vocabulary import draft_ids, most_frequent
from tests.model.pdm.authors_file import write_authors
from tests.model.pdm.conftest import HIDDEN, LAYERS, VOCAB
from tests.model.pdm.modules import ANCHORS, random_module
from workers.shared.errors import ConfigError


class TestFolder:
    def test_round_trip(self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path) -> None:
        module = random_module(target_config, draft_token_ids=(3, 7, 200))
        save_module(module, tmp_path / "m", torch.float32)
        loaded = load_module(tmp_path / "m", target_folder, "tiny")
        assert loaded.config == module.config
        for name, tensor in module.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor)

    def test_a_head_of_the_target_is_not_repeated(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path
    ) -> None:
        config = msgspec.structs.replace(random_module(target_config).config, head="target", draft_token_ids=(3, 200))
        module = DraftModule(config, target_config, torch.ones(HIDDEN))
        module.take_head(read_head(target_folder))
        save_module(module, tmp_path, torch.float32)
        with safe_open(tmp_path / "model.safetensors", framework="pt") as tensors:
            assert "lm_head.weight" not in tensors.keys()  # noqa: SIM118  (the handle is no mapping)
        loaded = load_module(tmp_path, target_folder, "tiny")
        assert torch.equal(loaded.lm_head.weight, read_head(target_folder)[[3, 200]])
        assert [name for name, parameter in loaded.named_parameters() if not parameter.requires_grad] == [
            "lm_head.weight"
        ]

    def test_another_target_is_refused_with_both_names(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path
    ) -> None:
        save_module(random_module(target_config), tmp_path)
        with pytest.raises(ConfigError, match=r"trained for 'tiny', not for 'other'"):
            load_module(tmp_path, target_folder, "other")

    def test_another_shape_is_refused(self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path) -> None:
        module = random_module(target_config)
        save_module(module, tmp_path)
        wrong = msgspec.structs.replace(module.config, vocab_size=999)
        (tmp_path / "config.json").write_bytes(msgspec.json.encode(wrong))
        with pytest.raises(ConfigError, match="vocabulary 999 against 259"):
            load_module(tmp_path, target_folder, "tiny")

    def test_missing_weights_are_named(self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path) -> None:
        module = random_module(target_config, layers=1)
        save_module(module, tmp_path)
        deeper = msgspec.structs.replace(module.config, layers=2)
        (tmp_path / "config.json").write_bytes(msgspec.json.encode(deeper))
        with pytest.raises(ConfigError, match=r"missing tensors \['spec_layers.1.input_layernorm"):
            load_module(tmp_path, target_folder, "tiny")

    def test_a_folder_without_a_module_is_refused(self, target_folder: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="takes a draft module folder"):
            load_module(tmp_path / "nothing", target_folder, "tiny")

    def test_unknown_fields_are_refused(self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path) -> None:
        module = random_module(target_config)
        save_module(module, tmp_path)
        content = msgspec.to_builtins(module.config) | {"anchor": [0]}
        (tmp_path / "config.json").write_bytes(msgspec.json.encode(content))
        with pytest.raises(ConfigError, match="anchor"):
            load_module(tmp_path, target_folder, "tiny")

    def test_bad_anchors_in_a_file_are_refused(self, target_folder: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="increase strictly"):
            ModuleConfig("tiny", LAYERS, HIDDEN, VOCAB, (0, 3, 3), 2)

    @pytest.mark.parametrize(("entry", "name"), [("ORG/NAME", "ORG/NAME"), ("/a/folder", "model"), (None, "model")])
    def test_target_name(self, tmp_path: Path, entry: str | None, name: str) -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_bytes(msgspec.json.encode({"_name_or_path": entry}))
        assert target_name(tmp_path / "model") == name


class TestAuthorsFile:
    def test_round_trip(self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path) -> None:
        module = random_module(target_config, 2, "qwen3", draft_token_ids=(3, 7, 200))
        write_authors(module, tmp_path / "head.pt", stages=4, dtype=torch.float32)
        loaded = read_authors(tmp_path / "head.pt", target_folder, "tiny")
        assert loaded.config == msgspec.structs.replace(module.config, stages=(4,))
        for name, tensor in module.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor)

    @pytest.mark.parametrize("layers", [1, 3])
    def test_tensors_of_the_file(self, target_config: LlamaConfig, tmp_path: Path, layers: int) -> None:
        write_authors(random_module(target_config, layers, "qwen3"), tmp_path / "head.pt", stages=4)
        content = torch.load(tmp_path / "head.pt", weights_only=True)
        shapes = {name: tuple(tensor.shape) for name, tensor in content["state_dict"].items()}
        assert len(shapes) == len(ANCHORS) + 1 + 11 * layers
        assert all(tensor.dtype == torch.bfloat16 for tensor in content["state_dict"].values())
        assert shapes["lm_head.weight"] == (VOCAB, HIDDEN)
        for kind in range(len(ANCHORS)):
            assert shapes[f"aggr_projs.{kind}.weight"] == (HIDDEN, (kind + 1) * HIDDEN)
        for layer in range(layers):
            prefix = f"spec_layers.{layer}."
            assert {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)} == {
                "self_attn.q_proj.weight": (32, HIDDEN),
                "self_attn.k_proj.weight": (16, HIDDEN),
                "self_attn.v_proj.weight": (16, HIDDEN),
                "self_attn.o_proj.weight": (HIDDEN, 32),
                "self_attn.q_norm.weight": (8,),
                "self_attn.k_norm.weight": (8,),
                "mlp.gate_proj.weight": (64, HIDDEN),
                "mlp.up_proj.weight": (64, HIDDEN),
                "mlp.down_proj.weight": (HIDDEN, 64),
                "input_layernorm.weight": (HIDDEN,),
                "post_attention_layernorm.weight": (HIDDEN,),
            }
        assert content["config"]["num_aggr_types"] == len(ANCHORS)
        assert "draft_token_ids" not in content["config"]

    def test_absent_anchors_follow_the_auto_rule_and_unsorted_ids_are_sorted(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path
    ) -> None:
        module = random_module(target_config, 1, "qwen3", anchors=(0, 2, 6, 7, 8), draft_token_ids=(3, 7, 200))
        write_authors(module, tmp_path / "head.pt", stages=4)
        content = torch.load(tmp_path / "head.pt", weights_only=True)
        del content["config"]["aggr_feature_bound"], content["config"]["version"]
        content["config"]["draft_token_ids"] = [200, 3, 7]
        torch.save(content, tmp_path / "head.pt")
        loaded = read_authors(tmp_path / "head.pt", target_folder, "tiny")
        assert loaded.config.anchors == (0, 2, 6, 7, 8)
        assert loaded.draft_to_target.tolist() == [3, 7, 200]

    @pytest.mark.parametrize("version", [10, 12])
    def test_other_versions_are_refused(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path, version: int
    ) -> None:
        write_authors(random_module(target_config, 1, "qwen3"), tmp_path / "head.pt", stages=4)
        content = torch.load(tmp_path / "head.pt", weights_only=True)
        content["config"]["version"] = version
        torch.save(content, tmp_path / "head.pt")
        with pytest.raises(ConfigError, match=f"version {version}; only 11"):
            read_authors(tmp_path / "head.pt", target_folder, "tiny")

    def test_other_dimensions_are_refused_with_the_target(
        self, target_config: LlamaConfig, target_folder: Path, tmp_path: Path
    ) -> None:
        write_authors(random_module(target_config, 1, "qwen3"), tmp_path / "head.pt", stages=4)
        content = torch.load(tmp_path / "head.pt", weights_only=True)
        content["config"]["hidden_size"] = 2560
        torch.save(content, tmp_path / "head.pt")
        with pytest.raises(ConfigError, match=r"hidden size 2560.*'tiny' has 32"):
            read_authors(tmp_path / "head.pt", target_folder, "tiny")

    def test_code_in_a_file_is_not_run(self, target_folder: Path, tmp_path: Path) -> None:
        torch.save({"state_dict": {}, "config": Path("x")}, tmp_path / "head.pt")
        with pytest.raises(ConfigError, match="not a draft module file"):
            read_authors(tmp_path / "head.pt", target_folder, "tiny")


class TestVocabulary:
    def test_order_of_the_list_does_not_matter(self) -> None:
        assert draft_ids([9, 3, 200, 3], 259) == draft_ids([3, 9, 200], 259) == (3, 9, 200)

    def test_most_frequent_keeps_the_end_token(self) -> None:
        assert most_frequent({5: 9, 4: 9, 7: 100, 1: 1}, 3, [258], 259) == (4, 7, 258)

    @pytest.mark.parametrize(("ids", "reason"), [([], "empty"), ([259], "outside"), ([-1, 3], "outside")])
    def test_bad_ids_are_refused(self, ids: list[int], reason: str) -> None:
        with pytest.raises(ConfigError, match=reason):
            draft_ids(ids, 259)


class TestModule:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_rotary_frequencies_stay_exact(self, target_config: LlamaConfig, dtype: torch.dtype) -> None:
        module = random_module(target_config)
        before = module.rotary.module.inv_freq.clone()
        module = module.to(dtype)
        assert module.lm_head.weight.dtype == dtype
        assert module.rotary.module.inv_freq.dtype == torch.float32
        assert torch.equal(module.rotary.module.inv_freq, before)

    def test_an_unsupported_target_is_refused_by_name(self) -> None:
        with pytest.raises(ConfigError, match="qwen3_moe"):
            random_module(Qwen3MoeConfig(hidden_size=HIDDEN, num_hidden_layers=LAYERS))
