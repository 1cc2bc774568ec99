"""Draft module folders: `config.json` and `model.safetensors`."""

from functools import partial
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from speculation.pdm.config import ModuleConfig, check_target
from speculation.pdm.module import DraftModule
from speculation.pdm.target import read_head, read_target_config, read_tensor
from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import FINAL_NORM


def save_module(module: DraftModule, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes the module's weights, as `dtype`, and its configuration; makes the folder if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in module.trained_state().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(module.config)) + b"\n")


def read_config(folder: Path) -> ModuleConfig:
    """The configuration of a draft module folder; raises `ConfigError` with the path of the offending field."""
    try:
        return msgspec.json.decode((folder / "config.json").read_bytes(), type=ModuleConfig)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}; --draft-module takes a draft module folder") from error


def load_module(folder: Path, target: Path, target_name: str) -> DraftModule:
    """The module in `folder`, float32 on the CPU, for the target in the model folder `target`.

    Raises `ConfigError`, with both names, where it belongs to another target, and where weights are missing.
    """
    config = read_config(folder)
    target_config = read_target_config(target)
    check_target(config, target_name, target_config)
    module = DraftModule(config, target_config, read_tensor(target, FINAL_NORM).float())
    try:
        tensors = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{folder / 'model.safetensors'}: {error}") from error
    fill_module(module, tensors, str(folder))
    module.borrow(partial(read_tensor, target), read_head(target))
    return module


def fill_module(module: DraftModule, tensors: dict[str, torch.Tensor], source: str) -> None:
    """Copies `tensors` into the module; raises `ConfigError` unless names and shapes are exactly its own."""
    expected = module.trained_state()
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unknown:
        raise ConfigError(f"{source}: missing tensors {missing[:3]}, unknown tensors {unknown[:3]}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ConfigError(f"{source}: {name} is {list(tensor.shape)}, expected {list(expected[name].shape)}")
    module.load_state_dict(tensors, strict=False)
