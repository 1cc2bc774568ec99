"""The API half of `echelon serve`'s options, checked before anything slow is started."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from server.tool_parsers.dialects import choose_dialect
from workers.shared.errors import ConfigError

KEYS_VARIABLE = "ECHELON_API_KEY"


@dataclass(frozen=True)
class ServerOptions:
    """Names are those of the flags."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    max_queue: int = 64
    tool_call_parser: str | None = None
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    ssl_keyfile: Path | None = None
    ssl_certfile: Path | None = None
    request_timeout: float | None = None
    header_timeout: float = 30.0
    max_requests: int = 1024

    @property
    def scheme(self) -> str:
        """`http`, or `https` where there is a certificate."""
        return "http" if self.ssl_certfile is None else "https"

    def check(self) -> None:
        """Raises `ConfigError` naming the flag that is wrong."""
        choose_dialect("", (), self.tool_call_parser)
        if self.request_timeout is not None and not self.request_timeout > 0:
            raise ConfigError("--request-timeout must be more than 0 seconds")
        if not self.header_timeout > 0:
            raise ConfigError("--header-timeout must be more than 0 seconds")
        if self.ssl_certfile is None:
            if self.ssl_keyfile is not None:
                raise ConfigError("--ssl-keyfile needs --ssl-certfile")
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"--ssl-certfile {self.ssl_certfile} --ssl-keyfile {self.ssl_keyfile}: {error}"
            ) from error


def collect_keys(flags: Sequence[str], variable: str) -> tuple[str, ...]:
    """The keys of `--api-key` and of the environment variable; raises `ConfigError` for one that cannot be sent."""
    keys = [*flags, *filter(None, (key.strip() for key in variable.split(",")))]
    if not all(key and key.isascii() and key.isprintable() and key == key.strip() for key in keys):
        raise ConfigError(f"--api-key and {KEYS_VARIABLE}: keys must be printable ASCII without spaces around them")
    return tuple(keys)
