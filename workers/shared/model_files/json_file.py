"""JSON objects of a model folder."""

import json
from pathlib import Path
from typing import Any

from workers.shared.errors import ConfigError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises `ConfigError` naming the file where there is none.

    As Python writes it: numbers may be infinite, and are in the configurations of Mamba 2.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return found


def read_optional_json(path: Path) -> dict[str, Any]:
    """As `read_json`, but empty where there is no such file."""
    return read_json(path) if path.exists() else {}
