"""Draft modules that come with Echelon, by the name of their target."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "shipped_weights"


def shipped_module(target: str) -> Path | None:
    """The folder of the module for the model called `target`, if one is shipped."""
    folder = FOLDER / target
    return folder if (folder / "config.json").is_file() and folder.parent == FOLDER else None
