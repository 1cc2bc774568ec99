"""Looking tensors of packed weights up, with errors that name them; torch-free."""

from collections.abc import Mapping, Sequence

from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import TensorEntry

Entries = Mapping[str, TensorEntry]


def shaped(entries: Entries, name: str, shape: Sequence[int | None]) -> tuple[int, ...]:
    """The shape of a tensor, which must be `shape`, where None stands for any size; raises `ConfigError` naming it."""
    if name not in entries:
        raise ConfigError(f"the checkpoint lacks {name}, which its quantization_config calls for")
    found = entries[name].shape
    if len(found) != len(shape) or any(want not in (None, size) for want, size in zip(shape, found, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ConfigError(f"{name} is {list(found)}, but its quantization_config calls for [{wanted}]")
    return found
