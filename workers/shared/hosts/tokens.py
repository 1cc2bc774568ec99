"""The secret that all processes of a group between hosts share. What is made of it is in `group_key`."""

import secrets

from workers.shared.errors import ConfigError

SHORTEST_TOKEN = 16  # characters: guesses can be tried out on a recorded handshake


def draw_token() -> str:
    """A token that nobody guesses, and that is never taken for an option: no dash is among its characters."""
    return secrets.token_hex(24)


def check_token(token: str) -> None:
    """Raises `ConfigError` for a token that is too short to protect anything, or that a shell would mangle."""
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"--token: give at least {SHORTEST_TOKEN} characters of ASCII without spaces, or none")
