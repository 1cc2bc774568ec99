"""Files that are complete or not there: written beside their place, then moved into it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields where to write the new content of `path`, which takes its place if nothing is raised.

    The old content stays until then, whatever ends the process. The file's mode is that of any new file of this user.
    """
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(b"")
    mode = new.stat().st_mode  # safetensors writes files that only their owner may read
    try:
        yield new
        new.chmod(mode)
        with new.open("rb") as file:
            os.fsync(file)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def replace_bytes(path: Path, content: bytes) -> None:
    """Makes `content` the content of `path`, at once."""
    with replacing(path) as new:
        new.write_bytes(content)
