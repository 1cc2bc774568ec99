"""ASGI middleware that decides who may come in, by the key of the request and what it asks for."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ApiError
from server.middleware.error_handlers import error_response

PROBES = frozenset({"/health", "/live", "/ready"})  # for load balancers and orchestrators
PAGES = frozenset({"/", "/dashboard"})  # they show nothing before they have been given a key
FIGURES = frozenset({"/metrics", "/status"})  # for Prometheus and other tools of operators
TRACE = "/dashboard/events"


class ApiKeys:
    """Answers 401 unless the request carries, as a bearer token, a key that opens what it asks for.

    | | `keys` alone | with `operator_keys` |
    | --- | --- | --- |
    | probes and pages | open | open |
    | figures | open | an operator's key |
    | the trace | any key | an operator's key |
    | everything else | any key | any key, or open where there are no `keys` |
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], operator_keys: Sequence[str]) -> None:
        self._app = app
        # Digests have one length, so that comparing them tells nothing about that of a key.
        self._operators = [digest(key.encode()) for key in operator_keys]
        self._users = [digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what is allowed."""
        if scope["type"] != "http" or _known(scope, self._needed(scope["path"])):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            "Incorrect API key provided: send one that this server knows as 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await error_response(scope, error)(scope, receive, send)

    def _needed(self, path: str) -> Sequence[bytes]:
        """Digests of the keys that open `path`; none: it is open."""
        if path in PROBES or path in PAGES:
            return ()
        if path in FIGURES:
            return self._operators
        if path == TRACE and self._operators:
            return self._operators
        return [*self._users, *self._operators] if self._users else ()


def _known(scope: Scope, digests: Sequence[bytes]) -> bool:
    token = bearer(scope)
    given = digest(token or b"")
    # All of them are compared, always.
    matches = [hmac.compare_digest(given, known) for known in digests]
    return not digests or (token is not None and any(matches))


def bearer(scope: Scope) -> bytes | None:
    """The key that a request carries."""
    header = dict(scope["headers"]).get(b"authorization", b"")
    scheme, _, token = header.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def digest(key: bytes) -> bytes:
    """What a key is known by: it is kept nowhere else."""
    return hashlib.sha256(key).digest()
