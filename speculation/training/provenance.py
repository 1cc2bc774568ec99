"""What a run was: enough to repeat it, and nothing about the machine's folders."""

import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

_PACKAGES = ("torch", "transformers", "safetensors", "tokenizers")


class TrainingProvenance(msgspec.Struct, frozen=True):
    """Kept as `provenance.json` beside a trained module."""

    command: str
    git: str
    python: str
    versions: dict[str, str]
    target: str
    data: dict[str, str]  # name of each data file: SHA-256
    examples: int
    answer_tokens: int


def command_line(module: str, arguments: Sequence[str]) -> str:
    """The command, with every path to a file or folder shortened to its name."""
    return " ".join(["python -m", module, *map(_shortened, arguments)])


def _shortened(argument: str) -> str:
    """`exit=heads/exit` is `exit=exit`."""
    before, equals, path = argument.rpartition("=")
    return f"{before}{equals}{Path(path).name}" if "/" in argument else argument


def git_commit() -> str:
    """The commit of the source tree, marked where it has changes; "unknown" outside of a repository."""
    folder = Path(__file__).parent
    try:
        shown = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return shown.stdout.strip()


def python_version() -> str:
    """Version of the interpreter."""
    return platform.python_version()


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide the numbers."""
    return {package: version(package) for package in _PACKAGES}
