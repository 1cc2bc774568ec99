"""Loads EAGLE-3 and P-EAGLE heads of any layout, and writes them in that of vLLM and speculators."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from speculation.heads.config import HeadConfig
from speculation.heads.files import draft_ids, read_tensors
from speculation.heads.layouts import Readings, TargetFacts, read_layout
from speculation.heads.network import EagleHead
from speculation.pdm.integrity import check_values
from speculation.pdm.replacing import replace_bytes, replacing
from speculation.pdm.target import read_head, read_tensor
from workers.shared.errors import ConfigError
from workers.shared.model_files.draft_heads import HeadKind, recognise
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.tensor_sizes import EMBEDDING

# Factors on embeddings that families have: whether a head that borrows the target's wants them, no file says.
_SCALED = ("embedding_multiplier",)
_SCALING_FAMILIES = ("gemma", "gemma2", "gemma3_text", "gemma4_text")


class LoadedHead(NamedTuple):
    """A head, and other ways in which it may be meant."""

    network: EagleHead  # float32 on the CPU, as it is declared
    readings: Readings


def load_head(folder: Path, target: Path, kind: HeadKind) -> LoadedHead:
    """The head in `folder` for the target in the model folder `target`.

    Raises `ConfigError` where it is of another kind or for another target, where tensors are missing, unknown or of
    another shape, or where anything is said that is not understood.
    """
    said = read_json(folder / "config.json")
    found = recognise(said, str(folder))
    if found is None:
        raise ConfigError(
            f"{folder}: config.json is not that of a draft head; see docs/heads.md for those that are read"
        )
    if found.kind != kind:
        raise ConfigError(f"{folder}: a draft head of the kind {found.kind}: use --drafter {found.kind}")
    of_target = read_json(target / "config.json")
    facts = TargetFacts(of_target["num_hidden_layers"], of_target["hidden_size"], of_target["vocab_size"])
    tensors, file = read_tensors(folder)
    tensors.pop("verifier_norm.weight", None)
    tensors.pop("verifier_lm_head.weight", None)
    ids = draft_ids(tensors, _rows(said, tensors, facts), facts.vocab_size, file)
    readings = read_layout(said, found, tensors, facts, folder)
    if not readings.declared.own_embedding:
        _check_unscaled(of_target, folder)

    head = EagleHead(readings.declared, ids)
    fill_head(head, tensors, str(file))
    head.borrow(partial(read_tensor, target, EMBEDDING), partial(read_head, target))
    return LoadedHead(head.eval().requires_grad_(False), readings)


def fill_head(head: EagleHead, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copies `tensors` into the head; raises `ConfigError` unless names and shapes are exactly its own."""
    expected = head.file_state()
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unknown:
        raise ConfigError(f"{source}: missing tensors {missing[:3]}, unknown tensors {unknown[:3]}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ConfigError(f"{source}: {name} is {list(tensor.shape)}, expected {list(expected[name].shape)}")
        if tensor.dtype.itemsize < 2:
            raise ConfigError(
                f"{source}: {name} is {tensor.dtype}; heads with weights of eight bits or fewer are not read"
            )
    check_values(tensors, source)
    head.load_state_dict(dict(tensors), strict=False)


def save_head(head: EagleHead, folder: Path, verifier: str, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes a head as speculators and vLLM read it, its weights as `dtype`; makes the folder if need be.

    `verifier` is the target's name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = head.config
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in head.file_state().items()}
    if config.draft_vocab_size != config.vocab_size:
        ids = head.draft_to_target.cpu()
        mask = torch.zeros(config.vocab_size, dtype=torch.bool)
        mask[ids] = True
        tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": mask}
    with replacing(folder / "model.safetensors") as new:
        save_file(tensors, new)
    said = msgspec.json.format(msgspec.json.encode(_said(config, verifier)))
    replace_bytes(folder / "config.json", said + b"\n")


def _said(config: HeadConfig, verifier: str) -> dict[str, Any]:
    """The config.json of a head."""
    kind = "peagle" if config.parallel else "eagle3"
    layer = {
        "model_type": config.layer_type,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.attention_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": config.layers,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": config.hidden_act,
        "attention_bias": config.attention_bias,
        "rope_parameters": config.rope,
        "max_position_embeddings": config.max_position_embeddings,
    }
    said: dict[str, Any] = {
        "architectures": ["PEagleSpeculator" if config.parallel else "Eagle3Speculator"],
        "speculators_model_type": kind,
        "speculators_config": {"algorithm": kind, "verifier": {"name_or_path": verifier, "architectures": []}},
        "transformer_layer_config": layer,
        "draft_vocab_size": config.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(config.features),
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
    }
    return said | ({"mask_token_id": config.mask_token_id} if config.parallel else {})


def _rows(said: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetFacts) -> int:
    if "lm_head.weight" in tensors:
        return tensors["lm_head.weight"].shape[0]
    return int(said.get("draft_vocab_size") or target.vocab_size)


def _check_unscaled(target: Mapping[str, Any], source: Path) -> None:
    if target["model_type"] in _SCALING_FAMILIES or any(target.get(name) not in (None, 1, 1.0) for name in _SCALED):
        raise ConfigError(
            f"{source}: has no embed_tokens.weight, and this target multiplies its embeddings by a factor: whether the "
            f"head wants it too, no file says; use a head with an embedding of its own"
        )
