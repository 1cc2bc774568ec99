"""ASGI middleware that bounds requests: how many at a time, and how many a minute of one key."""

from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError
from server.middleware.api_keys import FIGURES, PAGES, PROBES, bearer, digest
from server.middleware.error_handlers import error_response

_MINUTE = 60.0
_CALLERS = 10_000  # that are remembered, the latest
_ROUNDING = 1e-6  # of a request: what is saved up in pieces is a little less than the whole


class RequestLimit:
    """Answers 429 while `limit` requests are being served; what operators' tools read does not count."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what there is room for."""
        if scope["type"] != "http" or scope["path"] in PROBES | PAGES | FIGURES:
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


class Verdict(NamedTuple):
    """Whether a request may pass."""

    allowed: bool
    remaining: int  # requests that may follow at once
    wait: float  # seconds until one more may follow; 0 where one may


class Allowances:
    """`limit` requests a minute for each caller, all at once if they have been saved up. No sockets, no clock."""

    def __init__(self, limit: int, callers: int = _CALLERS) -> None:
        self._limit = limit
        self._most = callers
        self._left: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # requests, as of when; latest last

    def ask(self, caller: bytes, now: float) -> Verdict:
        """One more request of `caller`, at `now` seconds."""
        left, since = self._left.pop(caller, (float(self._limit), now))
        left = min(float(self._limit), left + (now - since) * self._limit / _MINUTE)
        allowed = left >= 1 - _ROUNDING
        left -= allowed
        self._left[caller] = left, now
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return Verdict(allowed, int(left + _ROUNDING), max(0.0, (1 - left) * _MINUTE / self._limit))


class RateLimit:
    """Answers 429 to who sends more than `limit` POST requests a minute: a key, or an address where there is none.

    Every answer tells what is left, in the headers that OpenAI's do.
    """

    def __init__(self, app: ASGIApp, limit: int, clock: Callable[[], float]) -> None:
        self._app = app
        self._limit = limit
        self._clock = clock
        self._allowances = Allowances(limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what is within the limit."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        verdict = self._allowances.ask(_caller(scope), self._clock())
        told = {
            "x-ratelimit-limit-requests": str(self._limit),
            "x-ratelimit-remaining-requests": str(verdict.remaining),
            "x-ratelimit-reset-requests": f"{verdict.wait:.3f}s",
        }

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.encode(), value.encode()) for name, value in told.items()]
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        if verdict.allowed:
            await self._app(scope, receive, telling)
            return
        error = ApiError(
            429,
            f"Rate limit reached: {self._limit} requests a minute; try again in {verdict.wait:.1f} s",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(ceil(verdict.wait))},
        )
        await error_response(scope, error)(scope, receive, telling)


def _caller(scope: Scope) -> bytes:
    token = bearer(scope)
    if token is not None:
        return digest(token)
    host, _ = scope.get("client") or ("", 0)
    return str(host).encode()
