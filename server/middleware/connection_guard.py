"""What uvicorn does not limit: how long a request's head may take, how long it may be, and how many may connect."""

import asyncio
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD_BYTES = 512 * 1024


class GuardedConfig(uvicorn.Config):
    """uvicorn's configuration with two more limits."""

    def __init__(self, app: ASGIApp, *, header_timeout: float, max_connections: int, **options: Any) -> None:
        """`header_timeout`: seconds from the first byte of a request, or from connecting, to the end of its headers."""
        super().__init__(app, http=GuardedProtocol, **options)
        self.header_timeout = header_timeout
        self.max_connections = max_connections


class GuardedProtocol(HttpToolsProtocol):
    """Closes connections that do not send what they have begun, and those that are too many.

    A response that is still being sent on the connection is never cut off.
    """

    _timer: asyncio.TimerHandle | None = None
    _head = 0  # bytes received of an unfinished head

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first request from now on."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            transport.abort()
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Refuses heads that do not end."""
        super().data_received(data)
        if self._timer is not None:
            self._head += len(data)
            if self._head > _HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The headers of this request are too long.")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        if self._timer is None:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        """Its head has arrived."""
        self._stop_waiting()
        super().on_headers_complete()

    @property
    def _limits(self) -> GuardedConfig:
        return cast(GuardedConfig, self.config)

    def _wait_for_head(self) -> None:
        self._head = 0
        self._timer = self.loop.call_later(self._limits.header_timeout, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_for_head()
        else:
            self.transport.close()
