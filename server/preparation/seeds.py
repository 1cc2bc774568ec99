"""Seeds for requests that give none."""

import secrets


def draw_seed() -> int:
    """A random seed of 63 bits."""
    return secrets.randbits(63)
