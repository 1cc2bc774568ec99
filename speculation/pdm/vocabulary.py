"""The draft vocabulary: draft id j stands for the j-th smallest target id of the set."""

from collections.abc import Iterable, Mapping

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


def most_frequent(counts: Mapping[int, int], size: int, always: Iterable[int], vocab_size: int) -> tuple[int, ...]:
    """The `size` most frequent tokens (ties: the smaller id) and those of `always`, which count within the size."""
    chosen = set(always)
    for token in sorted(counts, key=lambda token: (-counts[token], token)):
        if len(chosen) >= size:
            break
        chosen.add(token)
    return draft_ids(chosen, vocab_size)
