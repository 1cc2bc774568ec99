"""Whether two processes serve the same model: a digest of its folder, cheap enough for every start; torch-free."""

import hashlib
from collections import defaultdict
from pathlib import Path

import msgspec

from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import tensor_entries, tensor_files

_SAMPLE = 64  # bytes from the middle of each tensor: revisions and fine-tunes of a model have the same headers
_HEX_DIGITS = 16


class ModelDigest(msgspec.Struct, frozen=True):
    """What a prepared model folder holds, apart from its path; each part is a text of 16 hexadecimal digits."""

    config: str  # config.json
    tokenizer: str  # tokenizer.json
    weights: str  # every tensor's name, dtype, shape, and a few of its bytes


def read_digest(folder: Path) -> ModelDigest:
    """The digest of a prepared model folder.

    It reads headers and a few bytes a tensor, so it tells files apart that were made differently; a flipped bit
    elsewhere it does not see. Raises `ConfigError` naming the file that is missing or cannot be read.
    """
    return ModelDigest(
        config=file_digest(folder / "config.json"),
        tokenizer=file_digest(folder / "tokenizer.json"),
        weights=weights_digest(folder),
    )


def differences(one: ModelDigest, other: ModelDigest) -> list[str]:
    """The parts that are not the same, each with both values: `weights 1f... and 2e...`; empty for the same model."""
    pairs = ((name, getattr(one, name), getattr(other, name)) for name in ModelDigest.__struct_fields__)
    return [f"{name} {mine} and {theirs}" for name, mine, theirs in pairs if mine != theirs]


def file_digest(path: Path) -> str:
    """16 hexadecimal digits for the bytes of a file; raises `ConfigError` naming one that cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:_HEX_DIGITS]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def weights_digest(folder: Path) -> str:
    """Independent of how the tensors are distributed over files: another sharding of a model is the same model."""
    entries = tensor_entries(folder)
    in_file: dict[Path, list[str]] = defaultdict(list)
    for name, path in tensor_files(folder).items():
        in_file[path].append(name)
    of_tensor: dict[str, bytes] = {}
    for path, names in in_file.items():
        with path.open("rb") as file:
            for name in names:
                entry = entries[name]
                file.seek(entry.data_offsets[0] + entry.nbytes // 2)
                sample = file.read(min(_SAMPLE, entry.nbytes // 2))
                of_tensor[name] = f"{name} {entry.dtype} {entry.shape} ".encode() + sample
    return hashlib.sha256(b"".join(of_tensor[name] for name in sorted(of_tensor))).hexdigest()[:_HEX_DIGITS]
