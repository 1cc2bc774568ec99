"""Which KV slot serves a request, what it begins with, and what is forgotten for it. No sockets, no clock."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from speculation.decisions.schedule import Schedule

Limit = Callable[[int], int | None]  # by slot: how many of its positions may be reused; None: all of them


class Place(NamedTuple):
    """Where a request goes."""

    slot: int
    reused: int  # positions of its prompt that need not be computed again
    source: int  # the slot that holds them: its own, or one to copy from


def choose_slot(slots: Sequence[Schedule], idle: Sequence[int], prompt: Sequence[int], limit: Limit) -> Place:
    """The best of the `idle` slots, which are ordered by when they were last used, longest ago first.

    The longest common beginning wins, unless most of the slot's text would be lost for a small part of the prompt, as
    when two conversations share only their system prompt; then the slot used longest ago is taken over. If another
    slot, idle or not, holds more of the prompt, that is copied.
    """
    held = [schedule.reusable(prompt, limit(slot)) for slot, schedule in enumerate(slots)]
    best = max(idle, key=lambda slot: held[slot])
    returns = held[best] > 0 and (held[best] == slots[best].kept or 2 * held[best] >= len(prompt))
    slot = best if returns else idle[0]
    lenders = [other for other, schedule in enumerate(slots) if schedule.lends or other == slot]
    source = max(lenders, key=lambda other: (held[other], other == slot))
    return Place(slot, held[source], source)


def soon_held(slots: Sequence[Schedule], prompt: Sequence[int], limit: Limit) -> bool:
    """Whether more of `prompt` will soon be held than is now: a running request computes a prompt that begins alike.

    To wait for it takes no longer than to compute the same again. It ends with that request's first token, or before.
    """
    now = max(schedule.reusable(prompt, limit(slot)) for slot, schedule in enumerate(slots))
    return any(schedule.coming(prompt) > now for schedule in slots)


def to_forget(total: int, running: int, kept: Mapping[int, int], order: Sequence[int], wanted: int) -> list[int] | None:
    """What idle slots keep has to go for a request, the oldest first: all slots share so many positions with memory.

    Returns the idle slots to forget so that `wanted` positions are free; None where they are not even then. `running`
    positions are taken for good, `kept[slot]` are held by an idle slot; `order` is in which to forget them.
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
