"""ASGI middleware that decides who may come in: API keys, and how many requests at a time."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ApiError
from server.middleware.error_handlers import error_response

# For load balancers, Prometheus and other tools of operators; the pages show nothing without the key they ask for.
_OPEN_PATHS = frozenset({"/health", "/live", "/ready", "/metrics", "/status", "/", "/dashboard"})


class ApiKeys:
    """Answers 401 unless the request carries one of `keys` as a bearer token."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        # Digests have one length, so that comparing them tells nothing about that of a key.
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what is allowed."""
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS or self._known(scope):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            "Incorrect API key provided: send one that this server knows as 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await error_response(scope, error)(scope, receive, send)

    def _known(self, scope: Scope) -> bool:
        header = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, token = header.partition(b" ")
        given = _digest(token.strip())
        # All of them are compared, always.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == b"bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class RequestLimit:
    """Answers 429 while `limit` requests are being served; what operators' tools read does not count."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what there is room for."""
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if self._open >= self._limit:
            error = ApiError(
                429,
                f"the server already works on {self._limit} requests; try again later",
                code="too_many_requests",
                headers={"Retry-After": "1"},
            )
            await error_response(scope, error)(scope, receive, send)
            return
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1
