"""Which tokens end an answer, from the files of a prepared model folder; torch-free."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from workers.shared.errors import ConfigError
from workers.shared.model_files.json_file import read_optional_json


def token_content(value: object) -> str | None:
    """The text of a special token as configuration files write it: a string, or an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def read_end_tokens(folder: Path) -> frozenset[int]:
    """The union of what generation_config.json, config.json and tokenizer_config.json say; raises `ConfigError`."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = read_optional_json(folder / name).get("eos_token_id")
        try:
            ids.update(
                msgspec.convert([] if value is None else value if isinstance(value, list) else [value], set[int])
            )
        except msgspec.ValidationError as error:
            raise ConfigError(f"{folder / name}: eos_token_id must be a token id or a list of them: {error}") from error
    content = token_content(read_optional_json(folder / "tokenizer_config.json").get("eos_token"))
    if content is not None:
        ids.update(_ids_of(content, read_optional_json(folder / "tokenizer.json")))
    return frozenset(ids)


def _ids_of(content: str, tokenizer: Mapping[str, Any]) -> Iterable[int]:
    added = [token["id"] for token in tokenizer.get("added_tokens", []) if token["content"] == content]
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    if added or not isinstance(vocabulary, Mapping):
        return added
    return [vocabulary[content]] if content in vocabulary else []
