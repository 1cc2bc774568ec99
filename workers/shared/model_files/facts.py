"""What every process needs to know of a prepared model folder; torch-free."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from workers.shared.errors import ConfigError
from workers.shared.model_files.json_file import read_json


class ModelFacts(msgspec.Struct, frozen=True):
    """The part of config.json that is not about arithmetic."""

    num_hidden_layers: int
    vocab_size: int
    max_position_embeddings: int


def read_facts(folder: Path) -> ModelFacts:
    """Reads `config.json`; raises `ConfigError` naming the file and the field."""
    path = folder / "config.json"
    try:
        return msgspec.convert(read_json(path), ModelFacts)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error


def head_dim(config: Mapping[str, Any]) -> int:
    """Width of one attention head, from a config.json."""
    width: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return width
