"""Tensors of a head's folder, from `model.safetensors` or `pytorch_model.bin`, under the names that are used here."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from speculation.pdm.archive import load_archive
from workers.shared.errors import ConfigError

_SAFE, _PICKLED = "model.safetensors", "pytorch_model.bin"
_WRAPPERS = re.compile(r"^(model\.|draft_model\.)?(midlayer\.)?")


def read_tensors(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """Every tensor by its name here, on the CPU as it is stored, and the file they are from.

    Prefixes that vendors put before the same names are stripped. Raises `ConfigError` where there is no readable file,
    where it holds anything but tensors, or where two tensors get one name. Nothing in a file is run.
    """
    path = next((folder / name for name in (_SAFE, _PICKLED) if (folder / name).exists()), None)
    if path is None:
        raise ConfigError(f"{folder}: neither {_SAFE} nor {_PICKLED} in this folder; a draft head is in one of them")
    stored: Mapping[str, Any]
    if path.name == _PICKLED:
        stored = load_archive(path, dict, "draft head's file of tensors")
    else:
        try:
            stored = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path}: {error}") from error
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        here = own_name(str(name))
        if not isinstance(tensor, Tensor):
            raise ConfigError(f"{path}: {name} is {type(tensor).__name__} and no tensor")
        if here in tensors:
            raise ConfigError(
                f"{path}: two tensors are called {here} without their prefixes; it is not known which holds"
            )
        tensors[here] = tensor
    return tensors, path


def own_name(name: str) -> str:
    """A tensor's name here: `midlayer.mlp.up_proj.weight` is `layers.0.mlp.up_proj.weight`."""
    wrapper = _WRAPPERS.match(name)
    assert wrapper is not None
    return ("layers.0." if wrapper[2] else "") + name[wrapper.end() :]


def draft_ids(tensors: dict[str, Tensor], rows: int, vocab_size: int, source: Path) -> tuple[int, ...] | None:
    """Takes `d2t` and `t2d` out of `tensors`; the target ids of a draft vocabulary of `rows` tokens, ascending.

    `d2t` holds what is added to a draft id. None where the draft vocabulary is the target's, where they mean nothing.
    Raises `ConfigError` where one is missing that is needed, or the two contradict each other.
    """
    offsets, mask = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if rows == vocab_size:
        return None
    if offsets is None:
        raise ConfigError(f"{source}: lacks d2t, though it drafts from {rows} of {vocab_size} tokens")
    if offsets.shape != (rows,) or offsets.is_floating_point():
        raise ConfigError(f"{source}: d2t is {offsets.dtype} {list(offsets.shape)}, expected whole numbers [{rows}]")
    ids = torch.arange(rows) + offsets.to(torch.int64)
    if not (bool((ids[1:] > ids[:-1]).all()) and int(ids[0]) >= 0 and int(ids[-1]) < vocab_size):
        raise ConfigError(
            f"{source}: d2t does not lead to ascending tokens below {vocab_size}: it must hold what is added to a "
            f"draft id, not the target's id"
        )
    if mask is not None and (mask.shape != (vocab_size,) or not torch.equal(mask.bool().nonzero().squeeze(1), ids)):
        raise ConfigError(f"{source}: d2t and t2d say different things of which tokens can be drafted")
    return tuple(ids.tolist())
