"""Which draft head a folder holds, whoever wrote it, by its config.json alone; torch-free.

The signs and their order are those of the published heads (docs/heads.md).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from workers.shared.errors import ConfigError
from workers.shared.model_files.facts import head_dim
from workers.shared.model_files.json_file import read_json, read_optional_json
from workers.shared.model_files.tensor_sizes import read_header
from workers.shared.packed.inventory import read_inventory

HeadKind = Literal["eagle3", "peagle"]
HeadLayout = Literal["speculators", "specforge", "safeailab", "vllm"]

_SAFE, _PICKLED = "model.safetensors", "pytorch_model.bin"
_LAYER = re.compile(r"(midlayer|layers\.\d+)\.")
MASKS = ("mask_token_id", "pard_token", "ptd_token_id")  # the token of a head that drafts several in one pass
_CLASSES: Mapping[str, tuple[HeadKind, HeadLayout]] = {
    "LlamaForCausalLMEagle3": ("eagle3", "specforge"),
    "Eagle3LlamaForCausalLM": ("eagle3", "vllm"),
    "PEagleDraftModel": ("peagle", "specforge"),
}
_BLOCKS = "it drafts blocks of tokens at once by another network (DFlash and its like), which is not implemented"
_REFUSED: Mapping[str, str] = {
    "EagleLlamaForCausalLM": "it is a head of EAGLE's first or second version; use one of EAGLE-3",
    "EagleForCausalLM": "it is a head of EAGLE's first or second version; use one of EAGLE-3",
    "Eagle3DeepseekV2ForCausalLM": "its layer has multi-head latent attention, which no head here has",
    "DFlashDraftModel": _BLOCKS,
    "DSparkDraftModel": _BLOCKS,
    "DominoDraftModel": _BLOCKS,
    "MedusaModel": "Medusa heads are not implemented",
}
_SPECULATORS: Mapping[str, HeadKind] = {"eagle3": "eagle3", "peagle": "peagle"}
_SPECULATORS_REFUSED: Mapping[str, str] = {
    "eagle": _REFUSED["EagleLlamaForCausalLM"],
    "dflash": _BLOCKS,
    "dspark": _BLOCKS,
    "mtp": "heads for multi-token prediction are read from the target's own checkpoint: --drafter mtp",
}


class _Signs(msgspec.Struct):
    """The fields that tell heads apart."""

    architectures: list[str] | None = None
    speculators_model_type: str | None = None


class RecognisedHead(NamedTuple):
    """What a config.json says of a head."""

    kind: HeadKind
    layout: HeadLayout


def recognise_head(folder: Path) -> RecognisedHead | None:
    """The head that `folder` holds; None where it holds a model, or nothing with a config.json.

    Raises `ConfigError` with the reason for a head that cannot be used.
    """
    said = read_optional_json(folder / "config.json")
    return recognise(said, str(folder))


def recognise(said: Mapping[str, Any], source: str) -> RecognisedHead | None:
    """The same of a config.json that has been read; `source` begins messages."""
    try:
        signs = msgspec.convert(said, _Signs)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: config.json: {error}") from error
    found: RecognisedHead | None = None
    speculator, classes = signs.speculators_model_type, signs.architectures or []
    if speculator is not None:
        kind = _SPECULATORS.get(speculator)
        if kind is None:
            reason = _SPECULATORS_REFUSED.get(speculator, "this kind is not known; known are eagle3 and peagle")
            raise ConfigError(f"{source}: a draft head with speculators_model_type {speculator!r}: {reason}")
        found = RecognisedHead(kind, "speculators")
    for name in classes:
        if found is None and name in _CLASSES:
            found = RecognisedHead(*_CLASSES[name])
        elif found is None and name in _REFUSED:
            raise ConfigError(f"{source}: a draft head of class {name}: {_REFUSED[name]}")
    if found is None and classes == ["LlamaForCausalLM"] and said.get("draft_vocab_size"):
        found = RecognisedHead("eagle3", "safeailab")
    if found is not None and any(said.get(name) is not None for name in MASKS):
        found = found._replace(kind="peagle")  # some P-EAGLE heads have the class of EAGLE-3
    eagle = said.get("eagle_config")
    if found is not None and isinstance(eagle, Mapping) and eagle.get("use_aux_hidden_state") is False:
        raise ConfigError(
            f"{source}: eagle_config.use_aux_hidden_state is false: a head that reads the last hidden state only, "
            f"which is not implemented; use one that reads several"
        )
    return found


def no_model(source: str) -> str:
    """What to say of a head that is given where a model is wanted."""
    return f"{source}: a draft head and no model: serve the model that it was made for, with --draft-model {source}"


class HeadSize(NamedTuple):
    """How many numbers a head has."""

    weights: int  # with what it borrows from the target
    per_position: int  # keys and values, and the hidden states that it reads


def head_size(folder: Path, target: Path) -> HeadSize:
    """Of the head in `folder` for the model folder `target`, from headers alone.

    A `pytorch_model.bin` says what it holds only when it is read: its bytes are taken for numbers of 16 bits.
    """
    said = read_json(folder / "config.json")
    layer = {**said, **(said.get("transformer_layer_config") or {})}
    of_target = read_json(target / "config.json")
    entries = read_header(folder / _SAFE) if (folder / _SAFE).exists() else {}
    weights = sum(entry.elements for entry in entries.values())
    if not entries and (folder / _PICKLED).exists():
        weights = (folder / _PICKLED).stat().st_size // 2
    vocabulary, hidden = of_target["vocab_size"], of_target["hidden_size"]
    for borrowed in ("embed_tokens.weight", "lm_head.weight"):
        if not any(name.endswith(borrowed) for name in entries):
            weights += vocabulary * hidden
    layers = len({match[1] for name in entries if (match := _LAYER.search(name))}) or 1
    reads = next((entry.shape[1] for name, entry in entries.items() if name.endswith("fc.weight")), 3 * hidden)
    heads = layer.get("num_key_value_heads") or layer.get("num_attention_heads") or 1
    return HeadSize(weights, reads + 2 * layers * heads * head_dim(layer))


def own_head_size(target: Path) -> HeadSize:
    """The same of the head in the model folder `target` itself (`mtp.*`), which reads one hidden state."""
    said = read_json(target / "config.json")
    entries = read_inventory(target).entries
    weights = sum(entry.elements for name, entry in entries.items() if name.startswith("mtp."))
    weights += 2 * said["vocab_size"] * said["hidden_size"]
    heads = said.get("num_key_value_heads") or said["num_attention_heads"]
    return HeadSize(weights, said["hidden_size"] + 2 * heads * head_dim(said))
