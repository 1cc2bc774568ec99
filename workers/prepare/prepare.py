"""Makes a model ready to serve, wherever it comes from.

MODEL is `default` (embedded SmolLM2-135M-Instruct), `tiny` (built-in random model), a folder, a .gguf file, or
ORG/NAME on the Hugging Face hub.
"""

import re
from pathlib import Path

from workers.prepare.prepared_folders import cached
from workers.prepare.text_tower import explicit_folder
from workers.shared.errors import ConfigError
from workers.shared.model_files.draft_heads import no_model, recognise_head
from workers.shared.model_files.expected import KNOWN, check_extents, check_tensors
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.tensor_sizes import tensor_files

DEFAULT = "default"
TINY = "tiny"

_TINY_VERSION = "tiny-1"  # part of the cache entry's name: raise it when the tiny model's bytes change
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def prepare(model: str, revision: str | None = None) -> Path:
    """The folder (config.json, *.safetensors, tokenizer.json) that serves `model`; raises `ConfigError`.

    `revision` is that of a model on the hub, and means nothing elsewhere.
    """
    if model == TINY:
        from workers.prepare.tiny_model import write_tiny_model

        return cached(_TINY_VERSION, write_tiny_model)
    if model == DEFAULT:
        from workers.prepare.default_model import default_model

        return check_folder(default_model())
    path = Path(model).expanduser()
    if path.is_dir():
        return check_folder(path.absolute())
    if path.is_file() and path.suffix == ".gguf":
        from workers.prepare.gguf.convert import convert_gguf

        return check_folder(convert_gguf(path.absolute()))
    if path.exists():
        raise ConfigError(f"{model}: neither a model folder nor a .gguf file")
    if _HUB_NAME.fullmatch(model):
        from workers.prepare.hub_model import fetch

        return check_folder(fetch(model, revision))
    raise ConfigError(
        f"{model}: no such folder or file; give {DEFAULT}, {TINY}, ORG/NAME, a safetensors folder or a .gguf file"
    )


def prepare_drafting(model: str) -> Path:
    """The folder of what drafts: that of a draft head as it is, or of a model as `prepare` makes it."""
    path = Path(model).expanduser()
    if path.is_dir() and recognise_head(path) is not None:
        return path.absolute()
    if not path.exists() and _HUB_NAME.fullmatch(model):
        from workers.prepare.hub_model import fetch

        folder = fetch(model, heads=True)
        return folder if recognise_head(folder) is not None else check_folder(folder)
    return prepare(model)


def check_folder(folder: Path) -> Path:
    """`folder`, or a prepared one that says more; raises `ConfigError` where a file is missing or cannot be served."""
    if recognise_head(folder) is not None:
        raise ConfigError(no_model(str(folder)))
    folder = explicit_folder(folder)
    if not (folder / "tokenizer.json").exists():
        raise ConfigError(f"{folder}: no tokenizer.json in this folder; convert the tokenizer to that format first")
    missing = [path for path in sorted(set(tensor_files(folder).values())) if not path.exists()]
    if missing:
        raise ConfigError(f"{missing[0]}: missing, although the index names it; fetch the whole model")
    check_weights(folder)
    return folder


def check_weights(folder: Path) -> None:
    """Raises `ConfigError` where the tensors of a model folder are not those that its config.json calls for."""
    if read_json(folder / "config.json")["model_type"] in KNOWN:
        check_tensors(folder)
        return
    from workers.model.shapes import check_shapes

    check_extents(folder)
    check_shapes(folder)
