"""The folder in which prepared models are kept, and how one gets in: complete, once, under a lock."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from workers.shared.errors import ConfigError


def cache_folder() -> Path:
    """`$ECHELON_CACHE`, or ~/.cache/echelon; created where it does not exist. Raises `ConfigError`."""
    name = os.environ.get("ECHELON_CACHE") or "~/.cache/echelon"
    try:
        folder = Path(name).expanduser().absolute()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # the latter where there is no home
        raise _unusable(name, error) from error
    return folder


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """The cache entry `name`, made by `build(empty_folder)` where it does not exist yet.

    An entry appears under its name only when it is complete, and concurrent callers wait for the one that builds it.
    What `build` raises is passed on, and nothing is left behind; a full or read-only disk is a `ConfigError`.
    """
    folder = cache_folder()
    entry = folder / name
    if entry.exists():
        return entry
    try:
        return _built(folder, name, build)
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(folder)):
            raise  # about another file
        raise _unusable(str(folder), error) from error
    except SafetensorError as error:  # how that library reports a full disk
        raise _unusable(str(folder), error) from error


def _built(folder: Path, name: str, build: Callable[[Path], None]) -> Path:
    entry, partial = folder / name, folder / f"{name}.partial"
    with _locked(folder / f"{name}.lock"):
        if entry.exists():
            return entry
        # A process that was killed while it built leaves its partial folder; the lock says that it is nobody's.
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            build(partial)
            for path in partial.iterdir():
                if path.is_symlink():
                    continue  # somebody else's file
                path.chmod(0o644)  # safetensors lets only its owner read; containers run under other users
            partial.rename(entry)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return entry


def _unusable(folder: str, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(f"the cache {folder} cannot be used ({reason}); set ECHELON_CACHE to another folder")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`; the kernel releases it if the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
