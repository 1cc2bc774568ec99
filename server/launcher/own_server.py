"""The launcher's own API server, seen from outside: whether its port is free, and whether it is ready."""

import json
import socket
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection

import msgspec

from server.settings import ServerFields
from workers.shared.errors import ConfigError
from workers.shared.messages import ControllerStatus

_SECONDS = 2.0  # for an answer


def check_port_is_free(host: str, port: int) -> None:
    """Raises `ConfigError` before anything slow is started, if the port cannot be bound."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}; choose another") from error


def reachable(host: str) -> str:
    """A host name or address under which a server bound to `host` can be reached from here."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def base_url(options: ServerFields) -> str:
    """Where the server is reached from here."""
    host = reachable(options.host)
    return f"{options.scheme}://{f'[{host}]' if ':' in host else host}:{options.port}"


def not_ready(options: ServerFields) -> str | None:
    """Why the server does not say that it is ready; None where it does."""
    try:
        status, body = _ask(options, "/ready")
        return None if status == 200 else str(json.loads(body)["error"]["message"])
    except (OSError, HTTPException, ValueError, LookupError) as error:
        return f"the API server does not answer ({type(error).__name__})"


def controller_of(options: ServerFields) -> ControllerStatus | None:
    """What the engine expects of its drafters; None where it does not say."""
    try:
        _, body = _ask(options, "/status")
        return msgspec.json.decode(body, type=_Status).controller
    except (OSError, HTTPException, msgspec.MsgspecError):
        return None


class _Status(msgspec.Struct):
    controller: ControllerStatus


def _ask(options: ServerFields, path: str) -> tuple[int, bytes]:
    """Status and body of a GET.

    Never through a proxy, whatever the environment says. Whose certificate the server shows does not matter.
    """
    host, port = reachable(options.host), options.port
    if options.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: HTTPConnection = HTTPSConnection(host, port, timeout=_SECONDS, context=context)
    else:
        connection = HTTPConnection(host, port, timeout=_SECONDS)
    keys = options.operator_keys
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {keys[0]}"} if keys else {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
