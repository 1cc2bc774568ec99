"""A model folder whose config.json says everything, for one that says it elsewhere or leaves it to transformers.

A checkpoint that sees or hears keeps its language model's configuration in `text_config`; those of families with
recurrent layers may say which layer is which by rules. What processes without torch read is a folder of its own: a
config.json with every default filled in, and links to the files of the model.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.prepare.prepared_folders import cached
from workers.shared.errors import ConfigError
from workers.shared.model_files.architectures import check_supported, text_config
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.layers import layer_plans

_CONFIG = "config.json"
_VERSION = "2"  # part of the entry's name: raise it when what is written changes


def explicit_folder(folder: Path) -> Path:
    """`folder`, or the prepared folder that stands for it; raises `ConfigError` where the model is not supported."""
    said = read_json(folder / _CONFIG)
    text = text_config(said)
    check_supported(text)
    if text is said and _says_everything(said):
        return folder
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    key = json.dumps([_VERSION, str(folder.absolute()), said, *[_state_of(path) for path in files]])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return cached(f"text-{folder.absolute().name}-{digest}", lambda entry: _write(folder, files, entry))


def _says_everything(config: Mapping[str, Any]) -> bool:
    try:
        layer_plans(config)
    except KeyError:
        return False
    return True


def _state_of(path: Path) -> list[object]:
    about = path.stat()
    return [path.name, about.st_size, about.st_mtime_ns]


def _write(folder: Path, files: list[Path], entry: Path) -> None:
    from transformers import AutoConfig  # takes seconds, and few models need it here

    from workers.model.loader import said_of

    try:
        said = said_of(AutoConfig.from_pretrained(folder).get_text_config())
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder / _CONFIG}: {error}") from error
    outer = read_json(folder / _CONFIG)
    # Whether head and embedding are tied is said outside of the text's own configuration, where it is said.
    if "tie_word_embeddings" in outer:
        said["tie_word_embeddings"] = outer["tie_word_embeddings"]
    (entry / _CONFIG).write_text(json.dumps(said, indent=2))
    for path in files:
        if path.name != _CONFIG:
            (entry / path.name).symlink_to(path.absolute())
