"""Which KV slot serves a request: the one that holds most of its prompt already. No sockets, no clock."""

from collections.abc import Callable, Sequence

from speculation.decisions.schedule import Schedule


def choose_slot(
    slots: Sequence[Schedule],
    least_recent: Sequence[int],
    prompt: Sequence[int],
    limit: Callable[[int], int | None],
) -> tuple[int, int]:
    """The slot to use, and how many positions of `prompt` it need not compute again.

    The longest common beginning wins, unless most of the slot's text would be lost for a small part of the prompt, as
    when two conversations share only their system prompt; then the slot used longest ago is taken over. `least_recent`
    lists the slots in that order; `limit(slot)` is how much of a slot the drafter has kept.
    """
    best = max(least_recent, key=lambda slot: slots[slot].reusable(prompt, limit(slot)))
    reused = slots[best].reusable(prompt, limit(best))
    if reused > 0 and (reused == slots[best].kept or 2 * reused >= len(prompt)):
        return best, reused
    oldest = least_recent[0]
    return oldest, slots[oldest].reusable(prompt, limit(oldest))
