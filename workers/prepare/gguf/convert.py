"""Turns a GGUF file into an ordinary model folder, once, a tensor at a time."""

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from workers.prepare.gguf.configuration import model_config
from workers.prepare.gguf.file import GgufFile
from workers.prepare.gguf.tensors import ROPE_FACTORS, change_of, tensor_names
from workers.prepare.gguf.tokenizer import build_tokenizer, check_tokenizer_keys, end_tokens, special_tokens
from workers.prepare.prepared_folders import cached
from workers.prepare.safetensors_writer import write_safetensors
from workers.shared.errors import ConfigError
from workers.shared.model_files.architectures import check_supported
from workers.shared.model_files.blocks import BLOCKS, FIELD, packed_shape
from workers.shared.progress import Progress

_FORMAT = 4  # part of the cache entry's name: raise it when the conversion changes
_OF_EXPERTS = 3  # dimensions of a tensor that holds the matrices of all experts
_log = logging.getLogger(__name__)


def convert_gguf(path: Path) -> Path:
    """The cached folder made from `path`, told apart by path, size and time of modification."""
    status = path.stat()
    identity = hashlib.sha256(f"{path} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
    return cached(f"gguf{_FORMAT}-{path.stem}-{identity}", lambda folder: write_converted(path, folder))


def write_converted(path: Path, folder: Path) -> None:
    """Writes config, generation config, tensors and tokenizer into an empty folder.

    Raises `ConfigError` naming the key or tensor that cannot be applied as llama.cpp does.
    """
    _log.info("Converting %s (once) ...", path.name)
    file = GgufFile(path)
    try:
        _write(file, folder)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _write(file: GgufFile, folder: Path) -> None:
    check_tokenizer_keys(file.keys)
    factors = {name: file.values(name).ravel().tolist() for name in ROPE_FACTORS if name in file.tensors}
    config = model_config(file.keys, {name: file.shape(name) for name in file.tensors}, factors)
    check_supported(config)
    architecture = file.keys["general.architecture"]
    held = {
        name: tensor_names(architecture, name, file.shape(name)) for name in file.tensors if name not in ROPE_FACTORS
    }
    sources = {name: source for source, names in held.items() for name in names}
    ends = end_tokens(file.keys)
    special = special_tokens(file.keys)
    ids: dict[str, Any] = {f"{name}_id": token for name, token in special.items()}
    if ends:
        ids["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    kinds = {name: file.kind(source) for name, source in sources.items()}
    packed = {name: kind for name, kind in kinds.items() if kind in BLOCKS}
    _write_json(folder / "config.json", {**config, **ids, FIELD: packed})
    _write_json(folder / "generation_config.json", ids)
    _write_tokenizer(file, special, folder)
    entries = {name: _entry(file, source) for name, source in sources.items()}
    data = _tensors(file, config, list(held))
    with Progress(f"converting {file.path.name}") as progress:
        write_safetensors(folder / "model.safetensors", entries, data, progress.update)


def _entry(file: GgufFile, name: str) -> tuple[str, tuple[int, ...]]:
    """dtype and shape as stored: known blocks and 16-bit weights stay as they are, other ones become float32."""
    kind, shape = file.kind(name), file.shape(name)[-2:]  # of each expert, where the tensor is of several
    if kind in BLOCKS:
        return "U8", packed_shape(kind, shape)
    return kind if kind in ("F16", "BF16") else "F32", shape


def _tensors(file: GgufFile, config: dict[str, Any], names: list[str]) -> Iterator[NDArray[Any]]:
    for name in names:
        change = change_of(file.keys["general.architecture"], name, config)
        stored = file.blocks(name) if file.kind(name) in BLOCKS else file.values(name)
        if change is not None:
            stored = change(stored)
        whole = stored if file.kind(name) != "BF16" else (stored.view(np.uint32) >> 16).astype(np.uint16)
        yield from whole if whole.ndim == _OF_EXPERTS else [whole]


def _write_tokenizer(file: GgufFile, special: dict[str, int], folder: Path) -> None:
    tokenizer = build_tokenizer(file.path, file.keys)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = file.keys["tokenizer.ggml.tokens"]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # By the ids in the file: transformers takes the wrong tokens for these where it names them itself.
        **{name: tokens[token] for name, token in special.items()},
        "chat_template": file.keys.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
