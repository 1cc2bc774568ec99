"""Addresses of channels and edges: `unix://FILE` for links within one host, ZeroMQ's for everything else. Pure."""

from pathlib import Path

from workers.shared.errors import ConfigError

TCP = "tcp://"
_LOCAL = "unix://"


def is_local(endpoint: str) -> bool:
    """Whether links serve this endpoint, rather than ZeroMQ."""
    return endpoint.startswith(_LOCAL)


def zmq_endpoint(endpoint: str) -> str:
    """The address of the same file for a ZeroMQ socket."""
    return endpoint.replace(_LOCAL, "ipc://", 1) if is_local(endpoint) else endpoint


def socket_path(endpoint: str) -> Path:
    """The file of a local endpoint."""
    return Path(endpoint.removeprefix(_LOCAL))


def split_tcp(address: str) -> tuple[str, int]:
    """Host and port of `tcp://HOST:PORT`, without the brackets of IPv6; raises `ConfigError`."""
    host, _, port = address.removeprefix(TCP).rpartition(":")
    if not address.startswith(TCP) or not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"{address}: expected tcp://HOST:PORT")
    return host.strip("[]"), int(port)
