"""JSON objects of a model folder."""

from pathlib import Path
from typing import Any

import msgspec

from workers.shared.errors import ConfigError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises `ConfigError` naming the file where there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: {error}") from error


def read_optional_json(path: Path) -> dict[str, Any]:
    """As `read_json`, but empty where there is no such file."""
    return read_json(path) if path.exists() else {}
