"""Commands that are programs of their own, because this package may not import theirs."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Replaces this process, so that signals and the exit status are the program's own."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
