"""The `echelon` command."""

from server.cli.main import main

__all__ = ["main"]
