"""`python -m server --settings FILE`: runs the API server until SIGTERM or SIGINT."""

import argparse
import gc
import logging
import resource
import socket
import sys
from pathlib import Path
from types import FrameType

import uvicorn

from server.app import create_app
from server.engine.client import EngineClient
from server.middleware.connection_guard import GuardedConfig
from server.service import Service
from server.settings import load_settings
from workers.shared.errors import ConfigError
from workers.shared.lifecycle import die_with_parent

_GRACE_SECONDS = 2  # for responses to end by themselves once their requests have failed
_KEEP_ALIVE_SECONDS = 65
_OTHER_FILES = 64  # open files that are no connections


class _Server(uvicorn.Server):
    """Ends open requests with an error before it waits for their connections to close."""

    def __init__(self, config: uvicorn.Config, engine: EngineClient) -> None:
        super().__init__(config)
        self._engine = engine

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to shut down; unlike uvicorn's own handler it does not raise the signal again afterwards."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops accepting, lets every stream say that it was cut short, and leaves."""
        self._engine.shut("the server is shutting down")
        await super().shutdown(sockets)


def main() -> int:
    """Runs the server; 0 after a signal, 1 for settings or a model that cannot be served, 3 if the port is taken."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m server", description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="JSON file written by the launcher")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        settings = load_settings(arguments.settings)
        service = Service.load(settings)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _allow_files(settings.max_connections + _OTHER_FILES)
    config = GuardedConfig(
        create_app(service),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        header_timeout=settings.header_timeout,
        max_connections=settings.max_connections,
    )
    server = _Server(config, service.engine)
    # What has been built so far stays, so the collector need not go through it again and again.
    gc.collect()
    gc.freeze()
    server.run()
    return 0 if server.started else 3


def _allow_files(wanted: int) -> None:
    """Raises this process's own limit on open files as far as needed and permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        enough = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


if __name__ == "__main__":
    sys.exit(main())
