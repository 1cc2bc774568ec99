"""Files of `torch.save`, read without trusting them."""

import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from workers.shared.errors import ConfigError

T = TypeVar("T")

# What torch and pickle raise for bytes that they did not write.
_BROKEN = (
    OSError,
    EOFError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    RuntimeError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    msgspec.ValidationError,
    struct.error,
    zlib.error,
)


def load_archive(path: Path, content: type[T], what: str) -> T:
    """The file's dictionary as a `content` struct, tensors on the CPU; no code in it is run.

    Every byte is checked against the file's own checksums, which torch does not do. Raises `ConfigError`, saying that
    it is not a `what`, for any other file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if (broken := archive.testzip()) is not None:
                raise ConfigError(f"{path}: damaged: {broken} is not what was written; get or make the file again")
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
        return msgspec.convert(loaded, content)
    except _BROKEN as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError(f"{path}: not a {what}: {reason}") from error
