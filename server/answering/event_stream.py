"""A stream of server-sent events: comments while it is silent, and an end as soon as its client leaves."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.answering.disconnect import ClientGone, unless_disconnected

_COMMENT = b": ping\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second one is for nginx


def event(data: bytes, name: str | None = None) -> bytes:
    """One event; `data` is a single line."""
    head = b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, data)


class EventStream(Response):
    """Streams what `events` yields, each a whole event or several.

    A comment goes out every `ping` seconds, as proxies cut streams that stay silent, which they do during a long
    prefill. `close` is called at the end in every case, even if `events` was never begun.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], close: Callable[[], None], headers: Mapping[str, str], ping: float
    ) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._close = close
        self._ping = ping
        self.init_headers({**_HEADERS, **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        try:
            await unless_disconnected(receive, self._write(send))
        except ClientGone:
            pass
        finally:
            self._close()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with _kept_alive(send, self._ping), aclosing(self._events) as events:
            async for data in events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def _kept_alive(send: Send, seconds: float) -> AsyncIterator[None]:
    async def comment() -> None:
        while True:
            await asyncio.sleep(seconds)
            await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})

    task = asyncio.create_task(comment())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
