"""Assembles the FastAPI application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from server.metrics.engine import EngineCollector
from server.middleware.api_keys import ApiKeys
from server.middleware.body_limit import BodyLimit
from server.middleware.error_handlers import install_error_handlers
from server.middleware.limits import RateLimit, RequestLimit
from server.middleware.request_id import RequestIds
from server.routes.chat import chat_router
from server.routes.completions import completion_router
from server.routes.dashboard import dashboard_router
from server.routes.models import models_router
from server.routes.operations import operations_router
from server.routes.responses import responses_router
from server.routes.tokens import tokens_router
from server.service import Service


def create_app(service: Service) -> FastAPI:
    """The application over `service`, whose engine client it starts and stops."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.engine.start()
        yield
        await service.engine.stop()
        if service.spans is not None:
            await asyncio.to_thread(service.spans.close)

    app = FastAPI(title="Echelon", redoc_url=None, lifespan=lifespan)
    service.metrics.registry.register(EngineCollector(service.engine))
    settings = service.settings
    # Each one is put around those before it.
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes, seconds=settings.body_timeout)
    if settings.requests_per_minute is not None:
        app.add_middleware(RateLimit, limit=settings.requests_per_minute, clock=service.clock)
    if settings.api_keys or settings.operator_keys:
        app.add_middleware(ApiKeys, keys=settings.api_keys, operator_keys=settings.operator_keys)
    app.add_middleware(RequestLimit, limit=settings.max_requests)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id"],
        )
    app.add_middleware(RequestIds)
    install_error_handlers(app, service.metrics)
    for router in (chat_router, completion_router, models_router, operations_router, responses_router, tokens_router):
        app.include_router(router(service))
    if settings.dashboard:
        app.include_router(dashboard_router(service))
    return app
