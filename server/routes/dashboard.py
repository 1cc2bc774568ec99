"""GET / and /dashboard: pages; GET /dashboard/events: what they show, as it happens."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from server.answering.event_stream import EventStream, event
from server.engine.client import EngineUnavailable
from server.engine.trace_feed import TooManyViewers, Viewer
from server.errors import ApiError, bad_request
from server.live.page import Page
from server.live.view import View
from server.service import Service

_SECONDS = 1.0  # between two looks at the engine's figures
_SESSION = re.compile(r"[0-9a-f]{32}")


def dashboard_router(service: Service) -> APIRouter:
    """The routes over `service`."""
    router = APIRouter(include_in_schema=False)
    start, dashboard = Page.load("start.html"), Page.load("dashboard.html")

    @router.get("/")
    async def show_start() -> Response:
        return HTMLResponse(start.body, headers=start.headers)

    @router.get("/dashboard")
    async def show_dashboard() -> Response:
        return HTMLResponse(dashboard.body, headers=dashboard.headers)

    @router.get("/dashboard/events")
    async def events(session: str = "") -> Response:
        """Events for the page that drew `session` and begins the `X-Request-Id` of its requests with it."""
        if session and not _SESSION.fullmatch(session):
            raise bad_request("'session' must be 32 hexadecimal digits, drawn by chance", "session")
        stack = ExitStack()
        try:
            viewer = stack.enter_context(service.engine.watching())
        except TooManyViewers as error:
            raise ApiError(429, str(error), code="too_many_viewers", headers={"Retry-After": "10"}) from error

        def own(sequence: str) -> bool:
            return bool(session) and service.names.of(sequence).startswith(f"{session}-")

        view = View(own, service.tokenizer.token_text)
        return EventStream(_told(service, viewer, view), stack.close, {}, service.settings.ping_interval)

    return router


async def _told(service: Service, viewer: Viewer, view: View) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        if loop.time() >= due:
            yield event(msgspec.json.encode(_figures(service)), "status")
            due = loop.time() + _SECONDS
        try:
            async with asyncio.timeout_at(due):
                trace = await viewer.get()
        except TimeoutError:
            continue
        if trace is None:
            return
        yield event(msgspec.json.encode(view.batch(trace)), "trace")


def _figures(service: Service) -> dict[str, Any]:
    """How the engine is, or what is wrong with it."""
    found: dict[str, Any] = {"model": service.settings.served_model_name}
    try:
        status = service.engine.status
    except EngineUnavailable as error:
        return found | {"trouble": str(error)}
    figures = service.engine.figures
    return found | {"status": status, "busy": figures.busy_ratio, "cycle_seconds": figures.cycle_seconds}
