"""Types of command-line values that argparse has not: each refuses a bad value by name."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable


def whole(least: int) -> Callable[[str], int]:
    """Whole numbers from `least` on."""

    def parse(text: str) -> int:
        if not text.strip().lstrip("-").isdecimal() or (value := int(text)) < least:
            raise ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
        return value

    return parse


def not_negative(text: str) -> float:
    """A finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"{text!r} is no number of at least 0")
    return value


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers between commas."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ArgumentTypeError(f"{text!r} is no list of whole numbers such as 0,10,20")
    return tuple(map(int, parts))
