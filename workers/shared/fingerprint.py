"""Whether processes belong to one engine: what each of them was started with, part by part, to be compared.

Stages, rank 0 and the API server read files of their own, perhaps on hosts of their own. An old configuration, another
revision of the model or another program on one of them would make garbage while everything looks healthy.
"""

import hashlib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from workers.shared.config import EngineConfig
from workers.shared.messages import FromEngine, FromStage, ToEngine, ToStage
from workers.shared.model_files.digest import file_digest, weights_digest

Fingerprint = dict[str, str]  # what each part is named, and its value or a digest of it

_HEX_DIGITS = 16
# May differ from host to host.
_LOCAL = {"model", "endpoints", "devices", "threads", "stall_timeout", "ready_timeout", "drafter"}


def server_fingerprint(folder: Path) -> Fingerprint:
    """What an API server over the prepared model `folder` shares with its engine; raises `ConfigError`."""
    tokenizer = folder / "tokenizer.json"
    return {
        "version": package_version(),
        "messages": _messages_digest(),
        "config.json": file_digest(folder / "config.json"),
        "tokenizer.json": file_digest(tokenizer) if tokenizer.exists() else "none",
    }


def engine_fingerprint(config: EngineConfig) -> Fingerprint:
    """What rank 0 and every stage share; raises `ConfigError` where the model folder lacks a file."""
    folder = Path(config.model)
    settings = {name: getattr(config, name) for name in EngineConfig.__struct_fields__ if name not in _LOCAL}
    settings["scripted_acceptance"] = config.drafter.scripted_acceptance
    return {
        **server_fingerprint(folder),
        "weights": "none" if config.hollow_stages else weights_digest(folder),
        **{name: msgspec.json.encode(value).decode() for name, value in settings.items()},
    }


def fingerprint_key(fingerprint: Fingerprint) -> int:
    """64 bits that stand for a fingerprint, where a message has no room for more."""
    encoded = msgspec.json.encode(fingerprint, order="sorted")
    return int.from_bytes(hashlib.sha256(encoded).digest()[:8], "little")


def disagreement(one: str, mine: Mapping[str, str], other: str, theirs: Mapping[str, str]) -> str | None:
    """Where `theirs` is not what `mine` says, naming both sides; None if they agree in every part of `mine`.

    Parts that only `theirs` has do not matter.
    """
    differences = [
        f"{name} is {value} for {one}, {theirs.get(name, 'unknown')} for {other}"
        for name, value in mine.items()
        if theirs.get(name) != value
    ]
    return "; ".join(differences) or None


def package_version() -> str:
    """The installed version of Echelon."""
    try:
        return version("echelon")
    except PackageNotFoundError:
        return "unknown"  # run from a checkout that was never installed


def _messages_digest() -> str:
    """Of names, fields and types of all messages, which may change without the version."""
    schemas = msgspec.json.schema_components([ToEngine, FromEngine, ToStage, FromStage])
    return hashlib.sha256(msgspec.json.encode(schemas, order="sorted")).hexdigest()[:_HEX_DIGITS]
