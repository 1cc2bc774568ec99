"""Whose keys and values have memory. Pure.

All slots share so many positions. A request that runs has as many of them as it may come to need; what idle slots keep
of earlier prompts is forgotten for it, the oldest first.
"""

from collections.abc import Mapping, Sequence


def to_forget(total: int, running: int, kept: Mapping[int, int], order: Sequence[int], wanted: int) -> list[int] | None:
    """The idle slots to forget so that `wanted` positions are free; None where they are not even then.

    `running` positions are taken for good, `kept[slot]` are held by an idle slot; `order` is in which to forget them.
    """
    free = total - running - sum(kept.values())
    forgotten: list[int] = []
    for slot in order:
        if free >= wanted:
            break
        if kept[slot] > 0:
            forgotten.append(slot)
            free += kept[slot]
    return forgotten if free >= wanted else None
