"""A GGUF file's keys and tensors."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize
from numpy.typing import NDArray

from workers.shared.errors import ConfigError

_STORED = {"F32": np.float32, "F16": np.float16}


class GgufFile:
    """Opening one reads its header; tensors stay in the mapped file until they are asked for."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` where it is no GGUF file, is one of several parts, or ends early."""
        self.path = path
        try:
            reader = GGUFReader(path)
        # What the reader raises on damaged files depends on where they are damaged.
        except (OSError, ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not a GGUF file, or cut short: {error}") from error
        self.keys: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
        size = path.stat().st_size
        for tensor in reader.tensors:
            if tensor.data_offset + tensor.n_bytes > size:
                raise ConfigError(f"{path}: ends inside of tensor {tensor.name}; fetch the file again")
        if self.keys.get("split.count", 1) > 1:
            raise ConfigError(f"{path}: split.count: one of several files; join them with `llama-gguf-split --merge`")
        if self.keys.get("general.type", "model") != "model":
            raise ConfigError(f"{path}: general.type is {self.keys['general.type']!r}: not a model of its own")

    def shape(self, name: str) -> tuple[int, ...]:
        """Rows first, as torch has it."""
        return tuple(int(size) for size in reversed(self.tensors[name].shape))

    def kind(self, name: str) -> str:
        """What the tensor is stored as: F32, F16, BF16, or a kind of block."""
        return str(self.tensors[name].tensor_type.name)

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """A packed tensor as it is stored, bytes [rows, bytes a row]."""
        return self.tensors[name].data

    def values(self, name: str) -> NDArray[Any]:
        """The tensor unpacked: float16 where it is stored so, else float32; shape as `shape`."""
        tensor = self.tensors[name]
        stored = _STORED.get(tensor.tensor_type.name)
        if stored is not None:
            return tensor.data.astype(stored, copy=False).reshape(self.shape(name))
        try:
            return dequantize(tensor.data, tensor.tensor_type).reshape(self.shape(name))
        except NotImplementedError as error:
            raise ConfigError(f"{self.path}: tensor {name} is {tensor.tensor_type.name}, which is not read") from error
