"""Settings of the API server: options of `echelon serve`, and the file that the launcher or `echelon plan` writes."""

import ssl
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from server.tool_parsers.dialects import DIALECTS, choose_dialect
from workers.shared.config import write_private
from workers.shared.errors import ConfigError
from workers.shared.options.declared import AtLeastOne, NotNegative, Seconds, about
from workers.shared.options.sources import decode

API = "API"
KEYS_VARIABLE = "ECHELON_API_KEY"


class ServerFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What reaches the API server as it was given."""

    host: Annotated[str, about(API, "Address to listen on")] = "127.0.0.1"
    port: Annotated[Annotated[int, Meta(ge=0, le=65535)], about(API, "Port to listen on")] = 8000
    max_queue: Annotated[NotNegative, about(API, "Requests that may wait behind those that run; more get 429")] = 64
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"],
        about(
            API,
            "Which of the waiting requests starts next: the one that came first, or that whose field `priority` is "
            "lowest, the first to come among equals",
        ),
    ] = "fcfs"
    tool_call_parser: Annotated[
        str | None,
        about(API, f"How the model writes tool calls: {', '.join(DIALECTS)}", default="from its chat template"),
    ] = None
    chat_template: Annotated[
        str | None,
        about(API, "Jinja file to use in place of the model's default chat template", metavar="FILE"),
    ] = None
    api_keys: Annotated[
        tuple[str, ...],
        about(
            API,
            f"Keys that clients must send, one of them; better in the variable {KEYS_VARIABLE}, where other users of "
            f"this machine cannot see them",
            name="api_key",
        ),
    ] = ()
    operator_keys: Annotated[
        tuple[str, ...],
        about(
            API,
            "Keys without which /metrics, /status and what the dashboard shows stay closed, while API keys open the "
            "rest; they open that too",
            name="operator_key",
            default="/metrics and /status are open, API keys open the dashboard",
        ),
    ] = ()
    requests_per_minute: Annotated[
        AtLeastOne | None,
        about(API, "POST requests a minute of one key, or of one address without keys; more get 429", default="any"),
    ] = None
    cors_origins: Annotated[
        tuple[str, ...], about(API, "Sites whose pages may call from a browser, or *", name="cors_origin")
    ] = ()
    dashboard: Annotated[
        bool, about(API, "Show the pipeline at work at /dashboard, and what this is at /; --no-dashboard shows neither")
    ] = True
    metrics_alias: Annotated[
        Literal["none", "vllm"],
        about(API, "Show metrics under these names too, so that boards and gateway pickers made for them work"),
    ] = "none"
    otlp_traces_endpoint: Annotated[
        str | None,
        about(
            API,
            "Collector that gets a span of each request (OTLP over HTTP), such as http://127.0.0.1:4318/v1/traces; "
            "needs the extra 'otel'",
            metavar="URL",
        ),
    ] = None
    ssl_keyfile: Annotated[str | None, about(API, "Private key, for https", metavar="FILE")] = None
    ssl_certfile: Annotated[str | None, about(API, "Certificate, for https", metavar="FILE")] = None
    on_failure: Annotated[
        Literal["resume", "error"],
        about(API, "What open requests do when the engine is lost: go on with the next one, or end with an error"),
    ] = "resume"
    resume_attempts: Annotated[AtLeastOne, about(API, "Times that a request is sent to an engine again")] = 3
    resume_timeout: Annotated[Seconds, about(API, "Seconds that a request waits for an engine to come back")] = 300.0
    request_timeout: Annotated[
        Seconds | None, about(API, "Seconds from the arrival of a request to its last token", default="any")
    ] = None
    shutdown_timeout: Annotated[
        Annotated[float, Meta(ge=0)],
        about(API, "Seconds in which open requests may finish after SIGTERM, while new ones get 503"),
    ] = 20.0
    header_timeout: Annotated[Seconds, about(API, "Seconds in which the headers of a request must arrive")] = 30.0
    body_timeout: Annotated[Seconds, about(API, "Seconds in which its body must arrive")] = 30.0
    max_body_bytes: Annotated[AtLeastOne, about(API, "Longest body")] = 8 * 1024 * 1024
    max_requests: Annotated[AtLeastOne, about(API, "HTTP requests served at a time; more get 429")] = 1024
    max_connections: Annotated[AtLeastOne, about(API, "Connections open at a time; more are closed at once")] = 4096
    ping_interval: Annotated[Seconds, about(API, "Seconds between comments that keep a silent stream alive")] = 15.0

    @property
    def scheme(self) -> str:
        """`http`, or `https` where there is a certificate."""
        return "http" if self.ssl_certfile is None else "https"


class ServerOptions(ServerFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All options of the API server."""

    served_model_name: Annotated[str | None, about(API, "Name of the model in the API", default="from MODEL")] = None


class ServerSettings(ServerFields, frozen=True, forbid_unknown_fields=True):
    """Everything the API server needs to know before it hears from the engine."""

    model: str  # a prepared model folder: tokenizer.json, its configuration files and chat template
    served_model_name: str
    bus: str  # ZeroMQ address that rank 0 binds
    token: str = ""  # the secret of the engine's group, where `bus` is on tcp
    health_timeout: Seconds = 20.0  # without a Status after which the engine counts as down
    created: NotNegative = 0  # Unix seconds, shown by /v1/models


def check_server(options: ServerFields) -> None:
    """Raises `ConfigError` naming the flag that is wrong; reads the certificate, if there is one."""
    choose_dialect("", (), options.tool_call_parser)
    for flag, keys in ((f"--api-key and {KEYS_VARIABLE}", options.api_keys), ("--operator-key", options.operator_keys)):
        if not all(key and key.isascii() and key.isprintable() and key == key.strip() for key in keys):
            raise ConfigError(f"{flag}: keys must be printable ASCII without spaces around them")
    if options.ssl_certfile is None:
        if options.ssl_keyfile is not None:
            raise ConfigError("--ssl-keyfile needs --ssl-certfile")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"--ssl-certfile {options.ssl_certfile} --ssl-keyfile {options.ssl_keyfile}: {error}"
        ) from error


def settings_for(
    options: ServerOptions, name: str, model: str, bus: str, *, health_timeout: float, created: int, token: str = ""
) -> ServerSettings:
    """The API server's file for a prepared `model` folder, called `name` unless the options say otherwise."""
    given = {field: getattr(options, field) for field in ServerFields.__struct_fields__}
    for field in ("ssl_keyfile", "ssl_certfile", "chat_template"):
        given[field] = None if given[field] is None else str(Path(given[field]).absolute())
    return ServerSettings(
        model=model,
        served_model_name=options.served_model_name or name,
        bus=bus,
        token=token,
        health_timeout=health_timeout,
        created=created,
        **given,
    )


def load_settings(path: Path) -> ServerSettings:
    """Reads a JSON or TOML settings file; raises `ConfigError` with the path of the offending field."""
    try:
        return msgspec.convert(decode(path), type=ServerSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error


def save_settings(settings: ServerSettings, path: Path) -> None:
    """Writes `settings` as JSON, for this user alone: there may be keys in it."""
    write_private(path, settings)
