"""`python -m workers.prepare MODEL`: makes a model folder ready to serve and prints its path as the last line.

MODEL is `default` (embedded SmolLM2-135M-Instruct), `tiny` (built-in random model), a folder, a .gguf file, or
ORG/NAME on the Hugging Face hub. Progress goes to stderr.
"""

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from workers.architectures import check_supported
from workers.cache import cached
from workers.errors import ConfigError
from workers.model_bytes import read_json, tensor_files

DEFAULT = "default"
TINY = "tiny"

_TINY_VERSION = "tiny-1"  # part of the cache entry's name: raise it when the tiny model's bytes change
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def prepare(model: str) -> Path:
    """The folder (config.json, *.safetensors, tokenizer.json) that serves `model`; raises `ConfigError`."""
    if model == TINY:
        from workers.tiny_model import write_tiny_model

        return cached(_TINY_VERSION, write_tiny_model)
    if model == DEFAULT:
        from workers.default_model import default_model

        return check_folder(default_model())
    path = Path(model).expanduser()
    if path.is_dir():
        return check_folder(path.absolute())
    if path.is_file() and path.suffix == ".gguf":
        from workers.gguf_model import convert_gguf

        return check_folder(convert_gguf(path.absolute()))
    if path.exists():
        raise ConfigError(f"{model}: neither a model folder nor a .gguf file")
    if _HUB_NAME.fullmatch(model):
        from workers.hub_model import fetch

        return check_folder(fetch(model))
    raise ConfigError(
        f"{model}: no such folder or file; give {DEFAULT}, {TINY}, ORG/NAME, a safetensors folder or a .gguf file"
    )


def check_folder(folder: Path) -> Path:
    """`folder` itself; raises `ConfigError` where it lacks a file or holds a model that cannot be served."""
    check_supported(read_json(folder / "config.json"))
    if not (folder / "tokenizer.json").exists():
        raise ConfigError(f"{folder}: no tokenizer.json in this folder; convert the tokenizer to that format first")
    missing = [path for path in sorted(set(tensor_files(folder).values())) if not path.exists()]
    if missing:
        raise ConfigError(f"{missing[0]}: missing, although the index names it; fetch the whole model")
    return folder


def link(path: Path, folder: Path) -> None:
    """Makes `path` a link to `folder`, so that configurations can name it; raises `ConfigError` if it is no link."""
    if path.exists() and not path.is_symlink():
        raise ConfigError(f"--link {path}: something else has this name; remove it or choose another")
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(folder)
    fresh.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 where the model cannot be served (the reason is one line on stderr)."""
    parser = argparse.ArgumentParser(prog="python -m workers.prepare", description="Makes a model ready to serve.")
    parser.add_argument("model", nargs="?", default=DEFAULT, help="default, tiny, ORG/NAME, a folder or a .gguf file")
    parser.add_argument("--link", type=Path, help="make this path a symbolic link to the folder")
    options = parser.parse_args(arguments)
    # Our own progress, and other libraries' progress bars, but not their chatter about requests and kernels.
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(message)s")
    logging.getLogger("workers").setLevel(logging.INFO)
    try:
        folder = prepare(options.model)
        if options.link is not None:
            link(options.link, folder)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
