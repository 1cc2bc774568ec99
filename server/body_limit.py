"""ASGI middleware that refuses large request bodies before they are read into memory."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """Raises HTTP 413 from the application's `receive` as soon as a body exceeds `max_bytes`."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wraps `receive` of HTTP requests."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if max(seen, int(declared) if declared.isdigit() else 0) > self._max_bytes:
                    raise HTTPException(413, f"the request body is larger than {self._max_bytes} bytes")
            return message

        await self._app(scope, limited, send)
