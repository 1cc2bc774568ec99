"""Writes a safetensors file one tensor at a time: a model need not be in memory as a whole to be converted."""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from workers.shared.model_files.tensor_sizes import DTYPE_BYTES, TensorEntry

_ALIGNMENT = 8  # bytes, of the data behind the header


def write_safetensors(
    path: Path,
    entries: Mapping[str, tuple[str, tuple[int, ...]]],
    data: Iterable[NDArray[Any]],
    progress: Callable[[int, int], None] = lambda written, total: None,
) -> None:
    """Writes tensors with these names, dtypes (as safetensors spells them) and shapes; `data` yields them in order.

    A dtype that numpy lacks comes as bytes. `progress(written, total)` is called after each, with bytes.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in entries.items():
        start, end = end, end + DTYPE_BYTES[dtype] * math.prod(shape)
        header[name] = TensorEntry(dtype, shape, (start, end))
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        total = end
        for name, array in zip(entries, data, strict=True):
            written = file.write(np.ascontiguousarray(array).data)
            start, end = header[name].data_offsets
            assert written == end - start, f"{name}: {written} bytes for {entries[name]}"
            progress(end, total)
