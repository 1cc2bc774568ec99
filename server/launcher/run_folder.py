"""The private folder of one launcher: its Unix sockets and configurations."""

import os
import tempfile
from pathlib import Path

from workers.shared.errors import ConfigError

_LONGEST_SOCKET = 107  # bytes that Linux has for the path of a Unix socket
_ROOM = len("/control-9999-99999")  # what is put behind the folder's name


def make_run_folder() -> Path:
    """A new folder whose sockets have names that are short enough; raises `ConfigError` naming TMPDIR.

    The usual place comes first; where its name is too long, or it cannot be written, the user's runtime folder or /tmp.
    """
    reasons = []
    for parent in dict.fromkeys(filter(None, (os.environ.get("TMPDIR"), os.environ.get("XDG_RUNTIME_DIR"), "/tmp"))):
        try:
            folder = Path(tempfile.mkdtemp(prefix="echelon-", dir=parent))
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
            continue
        if len(os.fsencode(folder)) + _ROOM <= _LONGEST_SOCKET:
            return folder
        folder.rmdir()
        reasons.append(f"{parent}: too long for the path of a Unix socket")
    raise ConfigError(f"no folder for Unix sockets ({'; '.join(reasons)}); set TMPDIR to a short one")
