"""`python -m server --settings FILE`: runs the API server until SIGTERM or SIGINT."""

import argparse
import gc
import resource
import socket
import sys
import time
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
from workers.shared.processes.logs import configure, tell

_GRACE_SECONDS = 2  # for responses to end by themselves once their requests have failed
_KEEP_ALIVE_SECONDS = 65
_OTHER_FILES = 64  # open files that are no connections


class _Server(uvicorn.Server):
    """Drains after the first signal, and ends open requests with an error after the second, or when time is up."""

    def __init__(self, config: uvicorn.Config, engine: EngineClient, drain_seconds: float) -> None:
        super().__init__(config)
        self._engine = engine
        self._drain_seconds = drain_seconds
        self._deadline: float | None = None  # monotonic seconds, once a signal has come

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to shut down; unlike uvicorn's own handler it does not raise the signal again afterwards."""
        if self._deadline is not None:
            self.should_exit = True
            return
        self._deadline = time.monotonic() + self._drain_seconds
        self._engine.drain()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if self._deadline is not None and (self._engine.open_sequences == 0 or time.monotonic() > self._deadline):
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops accepting, lets every stream say that it was cut short, and leaves."""
        self._engine.shut("the server is shutting down")
        await super().shutdown(sockets)


def main() -> int:
    """Runs the server; 0 after a signal, 2 for settings or a model that cannot be served, 3 if the port is taken."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m server", description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="JSON file written by the launcher")
    arguments = parser.parse_args()
    try:
        configure("API server")
        settings = load_settings(arguments.settings)
        service = Service.load(settings)
    except ConfigError as error:
        tell(f"API server: {error}", error=True)
        return 2
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
    server = _Server(config, service.engine, settings.shutdown_timeout)
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
