"""What rank 0's host gives to others of its model: whole files of one folder, in pieces, and nothing else."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from workers.shared.hosts.messages import Fetch, ModelFile, Piece
from workers.shared.model_files.digest import read_digest

_HEX_DIGITS = 16
_PIECE = 4 << 20  # bytes


@dataclass(frozen=True)
class SharedModel:
    """The model as hosts that join hear of it."""

    name: str  # as the operator gave it; a path is absolute
    folder: Path  # prepared
    digest: str  # of what the folder holds
    by_files: bool  # whether it is files of this host, which others cannot fetch by name

    @property
    def revision(self) -> str | None:
        """The commit of a snapshot in the hub's cache; None for any other folder."""
        return self.folder.name if self.folder.parent.name == "snapshots" else None

    @classmethod
    def of(cls, given: str, folder: Path) -> "SharedModel":
        """`given` is what the operator asked for; raises `ConfigError` where the folder lacks a file."""
        path = Path(given).expanduser()
        digest = hashlib.sha256(msgspec.json.encode(read_digest(folder))).hexdigest()[:_HEX_DIGITS]
        return cls(str(path.absolute()) if path.exists() else given, folder, digest, path.exists())


class ModelFiles:
    """The files of a prepared folder, for hosts that cannot fetch the model by its name."""

    def __init__(self, folder: Path | None) -> None:
        """None where they can."""
        found = [] if folder is None else sorted(path for path in folder.iterdir() if path.is_file())
        self._paths = {path.name: path for path in found if not path.name.startswith(".")}
        self.offered = tuple(ModelFile(name, path.stat().st_size) for name, path in self._paths.items())

    def piece(self, wanted: Fetch) -> Piece:
        """What a host asks for; without data where there is no such file or place in it."""
        path = self._paths.get(wanted.name)
        data = b""
        if path is not None and wanted.offset < path.stat().st_size:
            try:
                with path.open("rb") as file:
                    file.seek(wanted.offset)
                    data = file.read(_PIECE)
            except OSError:
                data = b""  # the host gives up and says so
        return Piece(wanted.round, wanted.name, wanted.offset, data)
