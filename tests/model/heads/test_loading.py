"""Heads as vendors write them: the same head from every layout, and a line that says why for what is not understood."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from speculation.heads.checkpoint import LoadedHead, load_head
from speculation.heads.config import HeadConfig
from speculation.heads.network import EagleHead
from tests.model.heads.made import (
    DRAFT_IDS,
    EAGLE3,
    MASK_TOKEN,
    PEAGLE,
    VARIANTS,
    random_head,
    write_safeailab,
    write_specforge,
    write_speculators,
)
from workers.prepare.tiny_model import HIDDEN, LAYERS, VOCABULARY
from workers.shared.errors import ConfigError
from workers.shared.model_files.draft_heads import HeadKind, head_size, recognise_head


def load(folder: Path, target: Path, kind: HeadKind = "eagle3") -> LoadedHead:
    return load_head(folder, target, kind)


def same(one: EagleHead, other: EagleHead) -> bool:
    state, others = one.file_state(), other.file_state()
    return state.keys() == others.keys() and all(torch.equal(state[name], others[name]) for name in state)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_head_that_is_saved_is_the_head_that_is_loaded(name: str, tiny_model: Path, tmp_path: Path) -> None:
    head = random_head(VARIANTS[name])
    loaded = load(write_speculators(head, tmp_path), tiny_model)
    assert same(loaded.network, head)
    assert loaded.readings.declared == VARIANTS[name]
    assert not loaded.readings.others
    assert torch.equal(loaded.network.draft_to_target, head.draft_to_target)


def test_every_layout_holds_the_same_head(tiny_model: Path, tmp_path: Path) -> None:
    head = random_head(EAGLE3)
    pickled = load(write_safeailab(head, tmp_path / "bin"), tiny_model)
    safe = load(write_safeailab(head, tmp_path / "safe", pickled=False), tiny_model)
    forged = load(write_specforge(head, tmp_path / "forged"), tiny_model)
    for loaded in (pickled, safe, forged):
        assert same(loaded.network, head)
        assert loaded.network.config == EAGLE3
        assert loaded.network.draft_to_target.tolist() == list(DRAFT_IDS)
    assert recognise_head(tmp_path / "bin") == ("eagle3", "safeailab")
    assert recognise_head(tmp_path / "forged") == ("eagle3", "specforge")
    assert recognise_head(tiny_model) is None


def test_p_eagle_of_both_layouts(tiny_model: Path, tmp_path: Path) -> None:
    head = random_head(PEAGLE)
    for number, write in enumerate((write_speculators, write_specforge)):
        loaded = load(write(head, tmp_path / str(number)), tiny_model, "peagle")
        assert same(loaded.network, head)
        assert loaded.network.config.mask_token_id == MASK_TOKEN
        assert loaded.network.config.features == PEAGLE.features


def test_p_eagle_of_the_class_of_eagle3_is_known_by_its_mask(tiny_model: Path, tmp_path: Path) -> None:
    head = random_head(PEAGLE)
    said = {"architectures": ["LlamaForCausalLMEagle3"], "mask_token_id": None, "ptd_token_id": MASK_TOKEN}
    folder = write_specforge(head, tmp_path, **said)
    assert recognise_head(folder) == ("peagle", "specforge")
    assert same(load(folder, tiny_model, "peagle").network, head)


def test_what_a_list_of_layers_means_is_open_in_one_layout_only(tiny_model: Path, tmp_path: Path) -> None:
    """SGLang means outputs, vLLM inputs, of the same files."""
    head = random_head(replace(EAGLE3, features=(3, 9, 14)))
    forged = load(write_specforge(head, tmp_path / "f"), tiny_model).readings
    assert forged.declared.features == (3, 9, 14)
    assert [reading.features for reading in forged.others] == [(2, 8, 13)]
    theirs = load(write_speculators(head, tmp_path / "s", norm_before_residual=None), tiny_model).readings
    assert theirs.declared.features == (3, 9, 14)
    assert theirs.declared.norm_before_residual, "where speculators says nothing"
    assert [reading.norm_before_residual for reading in theirs.others] == [False]
    said = write_specforge(head, tmp_path / "n", norm_output=True, norm_before_residual=None)
    open_ones = load(said, tiny_model).readings
    assert len(open_ones.others) == 7
    assert not open_ones.declared.norm_output, "what wrote it meant another norm"


def test_where_only_one_meaning_is_possible_nothing_is_open(tiny_model: Path, tmp_path: Path) -> None:
    head = random_head(replace(EAGLE3, features=(1, 8, LAYERS)))
    readings = load(write_specforge(head, tmp_path), tiny_model).readings
    assert readings.declared.features == (1, 8, LAYERS)
    assert not readings.others


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "blocks": ({"speculators_model_type": "dflash"}, "drafts blocks of tokens"),
    "mtp": ({"speculators_model_type": "mtp"}, "--drafter mtp"),
    "another": ({"speculators_model_type": "hydra"}, "kind is not known"),
    "last state only": ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
    "flag": ({"eagle_config": {"spin": True}}, "eagle_config.spin is True, which is not known"),
    "top flag": ({"use_rotten_norm": True}, "use_rotten_norm is True, which is not supported"),
    "width": ({"target_hidden_size": 48}, "hidden size 48 .someone/the-target., but this one has 64"),
    "rows": ({"draft_vocab_size": 100}, "draft_vocab_size is 100, but lm_head.weight has 256 rows"),
    "count": ({"eagle_aux_hidden_state_layer_ids": [2, 8]}, "fc.weight reads 3 hidden states"),
    "depth": ({"eagle_aux_hidden_state_layer_ids": [2, 8, 17]}, "the target has 16 layers"),
    "embedding": ({"eagle_aux_hidden_state_layer_ids": [0, 8, 13]}, "from 1 to 16"),
    "norms": ({"fc_norm": True}, "fc_norm is True, but its tensors say otherwise"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_not_understood_is_refused_by_name(name: str, tiny_model: Path, tmp_path: Path) -> None:
    said, message = REFUSALS[name]
    folder = write_speculators(random_head(EAGLE3), tmp_path, **said)
    with pytest.raises(ConfigError, match=message) as refused:
        load(folder, tiny_model)
    assert str(tmp_path) in str(refused.value)


LAYER_REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "vocabulary": ({"vocab_size": 1000}, "vocabulary of 1000 tokens"),
    "rope": ({"rope_parameters": {"rope_type": "su", "rope_theta": 1.0}}, "rope type 'su'"),
    "window": ({"sliding_window": 512}, "sliding_window is 512"),
    "window of some": ({"layer_types": ["sliding_attention"]}, "see everything"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quantised heads are not read"),
    "heads": ({"num_attention_heads": None}, "num_attention_heads is None, not a whole number"),
}


@pytest.mark.parametrize("name", LAYER_REFUSALS)
def test_layers_of_another_kind_are_refused_by_name(name: str, tiny_model: Path, tmp_path: Path) -> None:
    said, message = LAYER_REFUSALS[name]
    folder = write_speculators(random_head(EAGLE3), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["transformer_layer_config"] |= said
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message):
        load(folder, tiny_model)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("DFlashDraftModel", "drafts blocks"),
        ("Eagle3DeepseekV2ForCausalLM", "latent attention"),
        ("EagleLlamaForCausalLM", "first or second version"),
    ],
)
def test_classes_that_cannot_be_used_say_why(architecture: str, message: str, tiny_model: Path, tmp_path: Path) -> None:
    folder = write_specforge(random_head(EAGLE3), tmp_path, architectures=[architecture])
    with pytest.raises(ConfigError, match=f"{architecture}.*{message}"):
        recognise_head(folder)


@pytest.mark.parametrize(
    "said",
    [
        {"architectures": 7},
        {"architectures": "LlamaForCausalLM"},
        {"architectures": [1]},
        {"speculators_model_type": []},
    ],
)
def test_fields_that_tell_heads_apart_are_refused_by_name_where_they_are_of_another_type(
    said: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=rf"{tmp_path}: config\.json: .* at `\$\.{next(iter(said))}"):
        recognise_head(tmp_path)


def changed(folder: Path, **tensors: torch.Tensor | None) -> Path:
    """The same folder with other tensors; None takes one out."""
    held = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor is None:
            del held[name]
        else:
            held[name] = tensor
    save_file(held, folder / "model.safetensors")
    return folder


def test_tensors_are_exactly_those_of_the_head(tiny_model: Path, tmp_path: Path) -> None:
    offsets = load_file(write_speculators(random_head(EAGLE3), tmp_path / "0") / "model.safetensors")["d2t"]
    mask = torch.zeros(VOCABULARY, dtype=torch.bool)
    mask[:256] = True
    cases: list[tuple[dict[str, torch.Tensor | None], str]] = [
        ({"extra.weight": torch.zeros(2)}, r"unknown tensors \['extra.weight'\]"),
        ({"norm.weight": None}, r"missing tensors \['norm.weight'\]"),
        ({"norm.weight": torch.zeros(3)}, r"norm.weight is \[3\], expected \[64\]"),
        ({"norm.weight": torch.full((HIDDEN,), torch.nan)}, "norm.weight holds NaN"),
        ({"norm.weight": torch.zeros(HIDDEN, dtype=torch.int8)}, "eight bits"),
        ({"d2t": None}, "lacks d2t, though it drafts from 256 of 512 tokens"),
        ({"d2t": offsets + torch.arange(256)}, "not the target's id"),
        ({"d2t": offsets.flip(0)}, "ascending"),
        ({"t2d": mask}, "d2t and t2d say different things"),
        ({"fc.weight": None}, "lacks fc.weight"),
        ({"fc.weight": torch.zeros(HIDDEN, 100)}, "no whole number of hidden states"),
        ({"midlayer.hidden_norm.weight": torch.zeros(HIDDEN)}, "two tensors are called layers.0.hidden_norm.weight"),
    ]
    for number, (tensors, message) in enumerate(cases, 1):
        folder = changed(write_speculators(random_head(EAGLE3), tmp_path / str(number)), **tensors)
        with pytest.raises(ConfigError, match=message):
            load(folder, tiny_model)
    missing_mask = changed(write_speculators(random_head(PEAGLE), tmp_path / "p"), mask_hidden=None)
    with pytest.raises(ConfigError, match="mask_hidden"):
        load(missing_mask, tiny_model, "peagle")


def test_prefixes_that_vendors_put_before_names_are_stripped(tiny_model: Path, tmp_path: Path) -> None:
    head = random_head(EAGLE3)
    folder = write_speculators(head, tmp_path)
    held = load_file(folder / "model.safetensors")
    save_file({f"model.{name}": tensor for name, tensor in held.items()}, folder / "model.safetensors")
    assert same(load(folder, tiny_model).network, head)


def test_a_head_of_the_other_kind_names_its_drafter(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use --drafter peagle"):
        load(write_speculators(random_head(PEAGLE), tmp_path), tiny_model)
    with pytest.raises(ConfigError, match="not that of a draft head"):
        load(tiny_model, tiny_model)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        load(tmp_path, tiny_model, "peagle")


def test_a_pickle_that_would_run_code_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = write_safeailab(random_head(EAGLE3), tmp_path)
    torch.save({"fc.weight": print}, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="not a draft head's file of tensors"):
        load(folder, tiny_model)


@pytest.mark.parametrize("config", [EAGLE3, PEAGLE], ids=["eagle3", "peagle"])
def test_the_size_that_is_told_before_is_that_of_the_head(config: HeadConfig, tiny_model: Path, tmp_path: Path) -> None:
    head = random_head(config)
    size = head_size(write_speculators(head, tmp_path), tiny_model)
    held = sum(parameter.numel() for parameter in head.parameters())
    maps = 0 if config.draft_vocab_size == VOCABULARY else config.draft_vocab_size + VOCABULARY
    assert size.weights == held + maps
    kv = 2 * config.layers * config.kv_heads * config.head_dim
    assert size.per_position == kv + len(config.features) * HIDDEN
