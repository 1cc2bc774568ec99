"""ASGI middleware that gives every request an id: in the headers of its response, in the log, and in errors."""

import re
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADER = b"x-request-id"
_GIVEN = re.compile(rb"[\x21-\x7e]{1,128}")  # what can go into a line of the log as it is


class RequestIds:
    """The client's own `X-Request-Id` if it can be written, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on, with the id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(_HEADER, b"")
        name = given if _GIVEN.fullmatch(given) else uuid4().hex.encode()
        scope.setdefault("state", {})["request_id"] = name.decode()

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (_HEADER, name)]}
            await send(message)

        await self._app(scope, receive, named)


def request_id(scope: Scope) -> str:
    """The id of a request that has come through `RequestIds`; empty for one that has not."""
    return str(scope.get("state", {}).get("request_id", ""))
