"""Draft module folders: `config.json` and `model.safetensors`."""

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from speculation.pdm.config import ModuleConfig, check_target
from speculation.pdm.integrity import check_values, checksum
from speculation.pdm.module import DraftModule
from speculation.pdm.replacing import replace_bytes, replacing
from speculation.pdm.target import read_head, read_target_config, read_tensor
from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import FINAL_NORM

WEIGHTS = "model.safetensors"
_CHECKSUM = "sha256"  # in the header of the weights; see `checksum`


def save_module(module: DraftModule, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes the module's weights, as `dtype`, and its configuration; makes the folder if need be.

    Each file is replaced at once, so that a module is there whenever the process ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in module.trained_state().items()}
    replace_bytes(folder / "config.json", msgspec.json.format(msgspec.json.encode(module.config)) + b"\n")
    with replacing(folder / WEIGHTS) as new:
        save_file(tensors, new, {_CHECKSUM: checksum(module.config, tensors)})


def read_config(folder: Path) -> ModuleConfig:
    """The configuration of a draft module folder; raises `ConfigError` with the path of the offending field."""
    try:
        return msgspec.json.decode((folder / "config.json").read_bytes(), type=ModuleConfig)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}; --draft-module takes a draft module folder") from error


def load_module(folder: Path, target: Path, target_name: str) -> DraftModule:
    """The module in `folder`, float32 on the CPU, for the target in the model folder `target`.

    Raises `ConfigError`, with both names, where it belongs to another target, and where weights are missing, are not
    those that were written with this configuration, or are no numbers.
    """
    config = read_config(folder)
    target_config = read_target_config(target)
    check_target(config, target_name, target_config)
    module = DraftModule(config, target_config, read_tensor(target, FINAL_NORM).float())
    tensors, written = _read_weights(folder / WEIGHTS)
    fill_module(module, tensors, str(folder))
    if written is not None and written != checksum(config, tensors):
        raise ConfigError(
            f"{folder / WEIGHTS}: damaged, or of another config.json: its checksum is not the one that was written"
        )
    module.borrow(partial(read_tensor, target), read_head(target))
    return module


def _read_weights(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """All tensors of the file, and the checksum that it says they have, if it does."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, (file.metadata() or {}).get(_CHECKSUM)  # noqa: SIM118  (the handle is no mapping)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path}: {error}") from error


def fill_module(module: DraftModule, tensors: dict[str, Any], source: str) -> None:
    """Copies `tensors` into the module.

    Raises `ConfigError` unless names and shapes are exactly its own, and all values are finite.
    """
    expected = module.trained_state()
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unknown:
        raise ConfigError(f"{source}: missing tensors {missing[:3]}, unknown tensors {unknown[:3]}")
    for name, tensor in tensors.items():
        shape = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        if shape != list(expected[name].shape):
            raise ConfigError(f"{source}: {name} is {shape}, expected {list(expected[name].shape)}")
    check_values(tensors, source)
    module.load_state_dict(tensors, strict=False)
