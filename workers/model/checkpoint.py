"""Reads named tensors of a model folder, and no others."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from workers.model.linear.whole import unpack
from workers.shared.errors import ConfigError
from workers.shared.model_files.blocks import packed_kinds
from workers.shared.model_files.json_file import read_optional_json
from workers.shared.model_files.tensor_sizes import TensorEntry, tensor_entries, tensor_files


class Checkpoint:
    """The tensors of a safetensors folder; opening one reads headers only."""

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError` where the folder holds no readable weights."""
        self.folder = folder
        self.entries: dict[str, TensorEntry] = tensor_entries(folder)
        self.packed = packed_kinds(read_optional_json(folder / "config.json"))  # kind of GGUF block, by name
        self._files = tensor_files(folder)

    def load(self, names: Iterable[str], dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """Yields each named tensor, unpacked and converted.

        Raises `ConfigError` naming one that is missing or not all numbers.
        """
        by_file: dict[Path, list[str]] = defaultdict(list)
        for name in names:
            by_file[self._file_of(name)].append(name)
        for path, wanted in by_file.items():
            with _opened(path, device) as file:
                for name in wanted:
                    stored = file.get_tensor(self.entries[name].stored_as)
                    if name in self.packed:
                        stored = unpack(self.packed[name], stored.cpu()).to(device)
                    # On the CPU it is a view of the mapped file; a copy lets go of the file and of its alignment.
                    tensor = stored.to(dtype, copy=device.type == "cpu")
                    if not tensor.isfinite().all():
                        raise ConfigError(
                            f"{path}: {name} has values that are infinite or not numbers in {_name(dtype)}; the file "
                            f"is damaged, or needs another --dtype"
                        )
                    yield name, tensor

    def tensor(self, name: str) -> Tensor:
        """One tensor on the CPU, unpacked, in its stored dtype; raises `ConfigError` as `load` does."""
        stored = self.stored(name)
        return unpack(self.packed[name], stored) if name in self.packed else stored

    def stored(self, name: str) -> Tensor:
        """One tensor as it is stored, a packed one as bytes [rows, bytes a row]: a view of the mapped file."""
        with _opened(self._file_of(name), torch.device("cpu")) as file:
            tensor: Tensor = file.get_tensor(self.entries[name].stored_as)
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
