"""Settings of the API server: one JSON file, written by the launcher or by hand for containers."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from workers.shared.errors import ConfigError

Positive = Annotated[float, msgspec.Meta(gt=0)]


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the API server needs to know before it hears from the engine."""

    model: str  # a prepared model folder: tokenizer.json, its configuration files and chat template
    served_model_name: str
    bus: str  # ZeroMQ address that rank 0 binds
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000
    max_queue: Annotated[int, msgspec.Meta(ge=0)] = 64  # sequences that may wait beyond the running one
    health_timeout: Positive = 20.0  # seconds without a Status after which the engine counts as down
    on_failure: Literal["resume", "error"] = "resume"  # what open requests do when the engine is lost
    resume_attempts: Annotated[int, msgspec.Meta(ge=1)] = 3  # times that a request is sent again
    resume_timeout: Positive = 300.0  # seconds that a request waits for an engine
    max_body_bytes: Annotated[int, msgspec.Meta(gt=0)] = 8 * 1024 * 1024
    body_timeout: Positive = 30.0  # seconds for a body to arrive in
    header_timeout: Positive = 30.0  # seconds for the headers of a request to arrive in
    max_connections: Annotated[int, msgspec.Meta(gt=0)] = 4096  # open at a time; more are closed at once
    request_timeout: Positive | None = None  # seconds from the arrival of a request to its last token
    max_requests: Annotated[int, msgspec.Meta(gt=0)] = 1024  # served at a time, those that wait for the engine included
    api_keys: tuple[str, ...] = ()  # none: everybody may come in
    cors_origins: tuple[str, ...] = ()  # from which pages of other sites may call; "*" is any
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ping_interval: Positive = 15.0  # seconds between comments that keep a silent stream alive
    chat_template: str | None = None  # a file to use in place of the model's default template
    tool_call_parser: str | None = None  # None: chosen by the model's chat template and vocabulary
    created: Annotated[int, msgspec.Meta(ge=0)] = 0  # Unix seconds, shown by /v1/models


def load_settings(path: Path) -> ServerSettings:
    """Reads a JSON settings file; raises `ConfigError` with the path of the offending field."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServerSettings)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: {error}") from error


def save_settings(settings: ServerSettings, path: Path) -> None:
    """Writes `settings` as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(settings)))
