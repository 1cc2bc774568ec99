"""Turns a GGUF file into an ordinary model folder, once.

The whole model is in memory while this runs, in float32; the stages that serve the result never hold it.
"""

import hashlib
import logging
from pathlib import Path
from typing import Any

import msgspec
import torch
from gguf import GGUFReader
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from workers.prepare.prepared_folders import cached
from workers.shared.errors import ConfigError
from workers.shared.model_files.architectures import check_supported
from workers.shared.model_files.tensor_sizes import HEAD

_FORMAT = 1  # part of the cache entry's name: raise it when the conversion changes
_log = logging.getLogger(__name__)


def convert_gguf(path: Path) -> Path:
    """The cached folder made from `path`, told apart by path, size and time of modification."""
    status = path.stat()
    identity = hashlib.sha256(f"{path} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
    return cached(f"gguf{_FORMAT}-{path.stem}-{identity}", lambda folder: write_converted(path, folder))


def write_converted(path: Path, folder: Path) -> None:
    """Writes config, generation config, tensors and tokenizer into an empty folder; raises `ConfigError`."""
    _log.info("Converting %s (once) ...", path.name)
    source: dict[str, Any] = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    try:
        config = AutoConfig.from_pretrained(**source).to_dict()
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{path}: not a GGUF file that transformers can read: {error}") from error
    for entry in ("quantization_config", "_model_name_or_path"):
        config.pop(entry, None)
    check_supported(config)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    _write_weights(model, config, folder)
    special = {
        name: getattr(model.config, f"{name}_id")
        for name in ("bos_token", "eos_token", "pad_token")
        if getattr(model.config, f"{name}_id", None) is not None
    }
    _write_json(folder / "generation_config.json", {f"{name}_id": token for name, token in special.items()})
    _write_tokenizer(path, source, special, folder)


def _write_weights(model: PreTrainedModel, config: dict[str, Any], folder: Path) -> None:
    state: dict[str, Tensor] = model.state_dict()
    if config["tie_word_embeddings"]:
        del state[HEAD]
    dtype = lossless_dtype(list(state.values()))
    save_file(
        {name: tensor.to(dtype).contiguous() for name, tensor in state.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    config |= {"architectures": [type(model).__name__], "dtype": str(dtype).removeprefix("torch.")}
    _write_json(folder / "config.json", config)


def lossless_dtype(tensors: list[Tensor]) -> torch.dtype:
    """The smallest dtype that holds these float32 values exactly.

    A 16-bit file gives its own dtype back. A quantised value is a scale times an integer, plus an offset: that takes
    more bits than any 16-bit dtype has, so such a model is kept in float32.
    """
    for dtype in (torch.bfloat16, torch.float16):
        if all(torch.equal(tensor.to(dtype).float(), tensor) for tensor in tensors):
            return dtype
    return torch.float32


def _write_tokenizer(path: Path, source: dict[str, Any], special: dict[str, int], folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(**source)
    backend = tokenizer.backend_tokenizer
    if _text_field(path, "tokenizer.ggml.pre") == "smollm":
        # transformers does not read this field; the model was trained with each digit as a token of its own.
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # By the ids in the file: transformers 5.17 takes the wrong tokens for these where it names them itself.
        **{name: backend.id_to_token(token) for name, token in special.items()},
        "chat_template": tokenizer.chat_template,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _text_field(path: Path, name: str) -> str | None:
    field = GGUFReader(path).get_field(name)
    return None if field is None else str(field.contents())


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
