"""Numbers of a command line, with commas between them. Raise `ValueError`, which argparse tells."""


def floats(text: str) -> list[float]:
    """Such as 0.72,0.82."""
    return [float(word) for word in text.split(",")]


def integers(text: str) -> list[int]:
    """Such as 2,4,8."""
    return [int(word) for word in text.split(",")]
