"""ASGI middleware that refuses request bodies that are too large, before they are read into memory, or too slow."""

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """Raises from the application's `receive`: HTTP 413 as soon as a body exceeds `max_bytes`, HTTP 408 where it has
    not arrived whole within `seconds`.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        self._app = app
        self._seconds = seconds
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wraps `receive` of HTTP requests."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        seen = 0
        whole = False
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def limited() -> Message:
            nonlocal seen, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the request body did not arrive within {self._seconds:g} seconds") from None
            whole = not message.get("more_body", False)
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if max(seen, int(declared) if declared.isdigit() else 0) > self._max_bytes:
                    raise HTTPException(413, f"the request body is larger than {self._max_bytes} bytes")
            return message

        await self._app(scope, limited, send)
