"""The folder in which prepared models are kept, and how one gets in: complete, once, under a lock."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """`$ECHELON_CACHE`, or ~/.cache/echelon; created where it does not exist."""
    folder = Path(os.environ.get("ECHELON_CACHE") or "~/.cache/echelon").expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """The cache entry `name`, made by `build(empty_folder)` where it does not exist yet.

    An entry appears under its name only when it is complete, and concurrent callers wait for the one that builds it.
    What `build` raises is passed on, and nothing is left behind.
    """
    folder = cache_folder()
    entry = folder / name
    if entry.exists():
        return entry
    partial = folder / f"{name}.partial"
    with _locked(folder / f"{name}.lock"):
        if entry.exists():
            return entry
        # A process that was killed while it built leaves its partial folder; the lock says that it is nobody's.
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            build(partial)
            for path in partial.iterdir():
                path.chmod(0o644)  # safetensors lets only its owner read; containers run under other users
            partial.rename(entry)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return entry


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`; the kernel releases it if the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
