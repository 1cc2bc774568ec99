"""Sizes of a model folder's tensors, from the safetensors headers alone: nothing here needs torch."""

import math
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from workers.shared.errors import ConfigError
from workers.shared.model_files.json_file import read_json, read_optional_json

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

# Of the dtypes that safetensors files of language models have; bytes an element.
DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}

_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("backbone.embeddings.", "model.embed_tokens."),
    ("backbone.", "model."),
    ("lm_head.", "lm_head."),
)
_TEXT = tuple(prefix for prefix, _ in _PREFIXES if prefix != "lm_head.")
EXPERTS = re.compile(r"\.experts\.|\.block_sparse_moe\.(input|output)_linear\.")
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")  # any of them says how many there are
_ACTIVE = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_k")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library


class TensorEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tensor as a safetensors header describes it."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]  # first byte and the one behind the last, in the file
    stored_as: str = ""  # its name in the file

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.data_offsets[1] - self.data_offsets[0]

    @property
    def elements(self) -> int:
        """Numbers in it, whatever their type."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Tensors of one safetensors file, by name; raises `ConfigError` where it is not one."""
    try:
        with path.open("rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if length > _MAX_HEADER_BYTES:
                raise ConfigError(f"{path}: not a safetensors file (its header would be {length} bytes long)")
            raw = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
            raw.pop("__metadata__", None)
            entries = {name: msgspec.json.decode(entry, type=TensorEntry) for name, entry in raw.items()}
    except (OSError, struct.error, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: not a readable safetensors file: {error}") from error
    data = _LENGTH.size + length  # the header counts from here
    return {
        name: TensorEntry(entry.dtype, entry.shape, (data + entry.data_offsets[0], data + entry.data_offsets[1]), name)
        for name, entry in entries.items()
    }


def tensor_files(folder: Path) -> dict[str, Path]:
    """Which file of a model folder holds each tensor of the language model, by its name there.

    Raises `ConfigError` where the folder has no weights.
    """
    files = _stored_files(folder)
    return {name: files[stored] for name, stored in text_names(files).items()}


def text_names(stored: Iterable[str]) -> dict[str, str]:
    """Names of a language model's tensors, as a checkpoint of text alone would have them -> as they are stored.

    A checkpoint that sees or hears has its language model under a prefix; its other tensors are none of ours.
    Nemotron-H has names of its own.
    """
    names = list(stored)
    if not any(name.startswith(_TEXT) for name in names):
        return {name: name for name in names}
    found = {}
    for name in names:
        for prefix, short in _PREFIXES:
            if name.startswith(prefix):
                found[short + name.removeprefix(prefix)] = name
                break
    return found


def _stored_files(folder: Path) -> dict[str, Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            weight_map = msgspec.convert(read_json(index).get("weight_map"), dict[str, str])
        except msgspec.ValidationError as error:
            raise ConfigError(f"{index}: weight_map must say in which file each tensor is: {error}") from error
        return {name: folder / file for name, file in weight_map.items()}
    single = folder / "model.safetensors"
    if not single.exists():
        raise ConfigError(f"{folder}: no model.safetensors and no model.safetensors.index.json in this folder")
    return dict.fromkeys(read_header(single), single)


def tensor_entries(folder: Path) -> dict[str, TensorEntry]:
    """Every tensor of a model folder, by name."""
    files = _stored_files(folder)
    headers = {path: read_header(path) for path in sorted(set(files.values()))}
    missing = [name for name, path in files.items() if name not in headers[path]]
    if missing:
        raise ConfigError(f"{files[missing[0]]}: lacks {missing[0]}, which the index says it holds")
    for path, header in headers.items():
        if unnamed := header.keys() - files.keys():
            raise ConfigError(f"{path}: holds {min(unnamed)}, which the index does not name; write the index anew")
    return {name: headers[files[stored]][stored] for name, stored in text_names(files).items()}


def layer_of(name: str) -> int | None:
    """The decoder layer that a tensor belongs to, if it belongs to one."""
    match = _LAYER.match(name)
    return None if match is None else int(match[1])


def active_experts(config: Mapping[str, Any]) -> float:
    """The share of its experts that a token goes to; 1 for a model without any."""
    counts = [config[name] for name in EXPERT_COUNTS if config.get(name)]
    active = next((config[name] for name in _ACTIVE if config.get(name)), None)
    return active / counts[0] if counts and active else 1.0


def layer_bytes(folder: Path, sizes: Mapping[str, int] | None = None) -> tuple[list[int], int]:
    """Bytes that a token reads of each decoder layer, and of final norm and LM head together, as `balance` wants them.

    `sizes` are those of each weight in memory; by default those in the file count. Of experts those count which a
    token goes to. A model without `lm_head.weight` has its head tied to the embedding. The embedding itself does not
    count: a token reads one row of it. Raises `ConfigError` where the tensors do not have the names of a decoder-only
    model.
    """
    if sizes is None:
        sizes = {name: entry.nbytes for name, entry in tensor_entries(folder).items()}
    active = active_experts(read_optional_json(folder / "config.json"))
    layers: dict[int, int] = {}
    for name, size in sizes.items():
        if (layer := layer_of(name)) is not None:
            layers[layer] = layers.get(layer, 0) + (int(size * active) if EXPERTS.search(name) else size)
    if not layers or set(layers) != set(range(len(layers))):
        raise ConfigError(f"{folder}: no consecutive model.layers.N tensors; this is not a decoder-only checkpoint")
    head = HEAD if HEAD in sizes else EMBEDDING
    if head not in sizes:
        raise ConfigError(f"{folder}: neither {HEAD} nor {EMBEDDING} is in the checkpoint")
    return [layers[layer] for layer in range(len(layers))], sizes[head] + sizes.get(FINAL_NORM, 0)
