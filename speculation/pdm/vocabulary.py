"""The draft vocabulary: draft id j stands for the j-th smallest target id of the set."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from workers.shared.errors import ConfigError


def draft_ids(token_ids: Iterable[int], vocab_size: int) -> tuple[int, ...]:
    """The set as ascending target ids, whatever the order it is given in.

    Raises `ConfigError` where it is empty or an id is outside the target's vocabulary.
    """
    ids = tuple(sorted(set(token_ids)))
    if not ids:
        raise ConfigError("the draft vocabulary is empty; give at least one token id")
    if ids[0] < 0 or ids[-1] >= vocab_size:
        raise ConfigError(f"draft token ids {ids[0]}..{ids[-1]} are outside the target's vocabulary of {vocab_size}")
    return ids


def to_draft(ids: tuple[int, ...], target_id: int) -> int | None:
    """The draft id of `target_id`, or None where it can never be drafted. `ids` come from `draft_ids`."""
    index = bisect_left(ids, target_id)
    return index if index < len(ids) and ids[index] == target_id else None


def most_frequent(counts: Mapping[int, int], size: int, always: Iterable[int], vocab_size: int) -> tuple[int, ...]:
    """The `size` most frequent tokens (ties: the smaller id) and those of `always`, which count within the size."""
    chosen = set(always)
    for token in sorted(counts, key=lambda token: (-counts[token], token)):
        if len(chosen) >= size:
            break
        chosen.add(token)
    return draft_ids(chosen, vocab_size)


def load_vocabulary(path: Path, vocab_size: int) -> tuple[int, ...]:
    """Reads the `token_ids` of a draft vocabulary file, whose order does not matter."""
    try:
        content: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        token_ids = msgspec.convert(content.get("token_ids"), list[int])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: {error}; a draft vocabulary is a JSON object with `token_ids`") from error
    return draft_ids(token_ids, vocab_size)
