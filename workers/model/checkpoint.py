"""Reads named tensors of a model folder, and no others."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from workers.model.linear.layouts import unpack
from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import tensor_files
from workers.shared.packed.inventory import read_inventory
from workers.shared.packed.rounding import Rounding


class Checkpoint:
    """The tensors of a safetensors folder; opening one reads headers only."""

    def __init__(self, folder: Path, rounding: Rounding | None = None) -> None:
        """With `rounding`, some weights count as packed that are not; `parts` has them as they are stored.

        Raises `ConfigError` where the folder holds no readable weights.
        """
        self.folder = folder
        self._weights = read_inventory(folder, rounding)
        self.entries, self.packed = self._weights.entries, self._weights.packed
        self._files = tensor_files(folder)
        self._opened: dict[Path, Any] = {}  # for the CPU: a header is long where experts lie one by one

    def load(self, names: Iterable[str], dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """Yields each named tensor, unpacked and converted.

        Raises `ConfigError` naming one that is missing or not all numbers.
        """
        by_file: dict[Path, list[str]] = defaultdict(list)
        for name in names:
            by_file[self._file_of(self._weights.stored(name))].append(name)
        for path, wanted in by_file.items():
            with _opened(path, device) as file:
                for name in wanted:
                    if name in self.packed:
                        stored = self._unpacked(name, dtype).to(device)
                    else:
                        stored = file.get_tensor(self.entries[name].stored_as)
                    # On the CPU it is a view of the mapped file; a copy lets go of the file and of its alignment.
                    tensor = stored.to(dtype, copy=device.type == "cpu")
                    if not tensor.isfinite().all():
                        raise ConfigError(
                            f"{path}: {name} has values that are infinite or not numbers in {_name(dtype)}; the file "
                            f"is damaged, or needs another --dtype"
                        )
                    yield name, tensor

    def close(self) -> None:
        """Lets go of the files; whatever is read later opens them again."""
        self._opened.clear()

    def tensor(self, name: str) -> Tensor:
        """One tensor on the CPU, unpacked, in its stored dtype; raises `ConfigError` as `load` does."""
        return self._unpacked(name, torch.float32) if name in self.packed else self._stored(name)

    def matrices(self, name: str) -> Iterator[dict[str, Tensor]]:
        """What makes up a packed weight, or each expert's in turn, as it is stored: views of mapped files."""
        weight = self.packed[name]
        stored = {part: self._stored(name) for part, name in weight.parts.items()}
        if not weight.experts:
            yield stored
        for expert in range(weight.experts):
            parts = {part: tensor[expert] for part, tensor in stored.items()}
            # What comes packed is stored by row, whatever the model has.
            yield {"weight": parts["weight"].T} if weight.by_column and weight.layout == "whole" else parts

    def _unpacked(self, name: str, dtype: torch.dtype) -> Tensor:
        weight = self.packed[name]
        matrices = (unpack(weight, parts) for parts in self.matrices(name))
        if not weight.experts:
            return next(matrices).to(dtype)
        whole = torch.empty(weight.unpacked_shape, dtype=dtype)
        for place, matrix in zip(whole, matrices, strict=True):
            place.copy_(matrix.T if weight.by_column else matrix)
        return whole

    def _stored(self, name: str) -> Tensor:
        path = self._file_of(name)
        if path not in self._opened:
            self._opened[path] = _opened(path, torch.device("cpu"))
        tensor: Tensor = self._opened[path].get_tensor(self._weights.tensors[name].stored_as)
        return tensor

    def _file_of(self, name: str) -> Path:
        if name not in self._files:
            raise ConfigError(f"{self.folder}: the checkpoint lacks {name}, which its config.json calls for")
        return self._files[name]


def _opened(path: Path, device: torch.device) -> Any:
    try:
        return safe_open(path, framework="pt", device=str(device))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
