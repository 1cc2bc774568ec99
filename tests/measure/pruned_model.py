"""Makes a draft model for tests and measurements out of a target: the target itself without some of its layers.

It shares the target's vocabulary, as `--draft-model` demands, and guesses worse than a model trained to be small. Where
the family has one, measure with that; results with a pruned model must say so.
"""

import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from workers.shared.errors import ConfigError
from workers.shared.model_files.blocks import FIELD
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.tensor_sizes import tensor_files

_LAYER = re.compile(r"(?<=^model\.layers\.)\d+(?=\.)")
_FILES = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write_pruned_model(source: Path, folder: Path, dropped: Collection[int]) -> None:
    """Writes the prepared model in `source` without the layers `dropped` into `folder`, in one file.

    Raises `ConfigError` where one of them does not exist, or none would be left.
    """
    config = read_json(source / "config.json")
    count: int = config["num_hidden_layers"]
    kept = [layer for layer in range(count) if layer not in dropped]
    if not kept or len(kept) + len(set(dropped)) != count:
        raise ConfigError(f"{source}: layers {sorted(dropped)} cannot be dropped; it has the layers 0..{count - 1}")
    number = {layer: place for place, layer in enumerate(kept)}
    config["num_hidden_layers"] = len(kept)
    if "layer_types" in config:
        config["layer_types"] = [config["layer_types"][layer] for layer in kept]
    if packed := config.get(FIELD):
        config[FIELD] = {new: packed[old] for old in packed if (new := _renamed(old, number)) is not None}
    tensors: dict[str, torch.Tensor] = {}
    files = tensor_files(source)
    for path in sorted(set(files.values())):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 -- not a mapping
                renamed = _renamed(name, number)
                if renamed is not None:
                    tensors[renamed] = file.get_tensor(name)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config)))
    for name in _FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)


def _renamed(name: str, number: Mapping[int, int]) -> str | None:
    """A tensor's name with its layer counted anew; `None` where the layer is dropped."""
    layer = _LAYER.search(name)
    if layer is None:
        return name
    return _LAYER.sub(str(number[int(layer[0])]), name) if int(layer[0]) in number else None
