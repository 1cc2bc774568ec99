"""A model folder, piece by piece, from rank 0's host: for models that are files there and nowhere else."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from workers.shared.errors import ConfigError
from workers.shared.hosts.messages import ModelFile, Piece
from workers.shared.progress import Progress


class Download:
    """Asks for one piece after the other; the folder appears under its name when it is complete."""

    def __init__(self, folder: Path, files: Sequence[ModelFile]) -> None:
        """Raises `ConfigError` where the disk does not take it, or for a name that would lead elsewhere."""
        self._folder = folder
        self._partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
        self._files = list(files)
        self._offset = 0  # within the first of them
        self._size, self._fetched = sum(file.size for file in files), 0
        self._progress = Progress("fetching from rank 0's host")
        for file in files:
            if Path(file.name).name != file.name or file.name in (".", ".."):
                raise ConfigError(f"rank 0 offers a file called {file.name!r}")
        shutil.rmtree(self._partial, ignore_errors=True)
        try:
            self._partial.mkdir(parents=True)
            for file in files:
                (self._partial / file.name).touch()
        except OSError as error:
            raise self._unusable(error) from error
        self._skip_complete()

    @property
    def wanted(self) -> tuple[str, int] | None:
        """Name and offset of the next piece; None once there is nothing more to ask for."""
        return (self._files[0].name, self._offset) if self._files else None

    def take(self, piece: Piece) -> None:
        """Appends a piece; another one than was asked for means nothing. Raises `ConfigError` for a full disk."""
        if (piece.name, piece.offset) != self.wanted:
            return
        file = self._files[0]
        if not piece.data or self._offset + len(piece.data) > file.size:
            raise ConfigError(f"{file.name} has changed on rank 0's host; serve it again")
        try:
            with (self._partial / file.name).open("ab") as opened:
                opened.write(piece.data)
        except OSError as error:
            raise self._unusable(error) from error
        self._offset += len(piece.data)
        self._fetched += len(piece.data)
        self._progress.update(self._fetched, self._size)
        self._skip_complete()

    def finish(self) -> Path:
        """The complete folder."""
        self._progress.finish()
        if self._folder.exists():  # another member on this host was faster
            self.cancel()
        else:
            self._partial.rename(self._folder)
        return self._folder

    def cancel(self) -> None:
        """Leaves nothing behind."""
        shutil.rmtree(self._partial, ignore_errors=True)

    def _skip_complete(self) -> None:
        while self._files and self._offset == self._files[0].size:
            del self._files[0]
            self._offset = 0

    def _unusable(self, error: OSError) -> ConfigError:
        self.cancel()
        return ConfigError(f"the cache {self._folder.parent} cannot be used ({error.strerror}); set ECHELON_CACHE")
