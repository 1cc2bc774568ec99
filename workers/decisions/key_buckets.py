"""How many keys a recorded frame looks at: a function of its position alone, so that a position always gets the same
bits. No torch, no sockets, no clock."""

_FIRST = 256  # positions: with fewer, kernels take no less time


def key_buckets(max_len: int) -> list[int]:
    """The lengths that there are for slots of `max_len` positions, rising; each about twice the one before."""
    lengths = []
    length = _FIRST
    while length < max_len:
        lengths.append(length)
        length *= 2
    return [*lengths, max_len]


def key_bucket(end: int, max_len: int) -> int:
    """The least of them that holds the positions before `end`, which is from 1 to `max_len`."""
    length = _FIRST
    while length < end:
        length *= 2
    return min(length, max_len)
