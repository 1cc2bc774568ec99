"""Draft module folders: `config.json` and `model.safetensors`."""

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from speculation.pdm.config import ModuleConfig, check_target, read_config
from speculation.pdm.integrity import check_values, checksum
from speculation.pdm.module import DraftModule
from speculation.pdm.replacing import replace_bytes, replacing
from speculation.pdm.target import read_final_norm, read_head, read_target_config, read_tensor
from workers.shared.errors import ConfigError

WEIGHTS = "model.safetensors"


def save_module(module: DraftModule, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes the module's weights, as `dtype`, and its configuration; makes the folder if need be.

    Each file is replaced at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in module.trained_state().items()}
    with replacing(folder / WEIGHTS) as new:
        save_file(tensors, new)
    config = msgspec.structs.replace(module.config, sha256=checksum(module.config, tensors))
    replace_bytes(folder / "config.json", msgspec.json.format(msgspec.json.encode(config)) + b"\n")


def take_weights(module: DraftModule, folder: Path) -> None:
    """Copies the trained weights of the draft module in `folder` into `module`, as a start for more training.

    Raises `ConfigError` where they are of another shape, or for another target, naming what differs.
    """
    saved = read_config(folder)
    mine, theirs = (
        msgspec.structs.asdict(msgspec.structs.replace(of, sha256=None, stages=())) for of in (module.config, saved)
    )
    if changed := sorted(name for name in mine if mine[name] != theirs[name]):
        raise ConfigError(f"--start {folder}: that module has another {', '.join(changed)}")
    tensors = _read_weights(folder / WEIGHTS)
    _check_sum(folder, saved, tensors)
    fill_module(module, tensors, str(folder))


def load_module(folder: Path, target: Path, target_name: str) -> DraftModule:
    """The module in `folder`, float32 on the CPU, for the target in the model folder `target`.

    Raises `ConfigError`, with both names, where it belongs to another target, and where weights are missing, are not
    those that were written with this configuration, or are no numbers.
    """
    saved = read_config(folder)
    config = msgspec.structs.replace(saved, sha256=None)
    target_config = read_target_config(target)
    check_target(config, target_name, target_config)
    module = DraftModule(config, target_config, read_final_norm(target, target_config))
    tensors = _read_weights(folder / WEIGHTS)
    fill_module(module, tensors, str(folder))
    _check_sum(folder, saved, tensors)
    module.borrow(partial(read_tensor, target), read_head(target))
    return module


def _check_sum(folder: Path, saved: ModuleConfig, tensors: dict[str, Tensor]) -> None:
    if saved.sha256 not in (None, checksum(msgspec.structs.replace(saved, sha256=None), tensors)):
        raise ConfigError(
            f"{folder / WEIGHTS}: damaged, or of another config.json: its checksum is not the one that was written"
        )


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
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
