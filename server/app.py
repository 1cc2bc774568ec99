"""Assembles the FastAPI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from server.body_limit import BodyLimit
from server.engine_metrics import EngineCollector
from server.error_handlers import install_error_handlers
from server.routes.chat import chat_router
from server.routes.completions import completion_router
from server.routes.models import models_router
from server.routes.operations import operations_router
from server.service import Service


def create_app(service: Service) -> FastAPI:
    """The application over `service`, whose engine client it starts and stops."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.engine.start()
        yield
        await service.engine.stop()

    app = FastAPI(title="Echelon", docs_url=None, redoc_url=None, lifespan=lifespan)
    service.metrics.registry.register(EngineCollector(service.engine))
    app.add_middleware(BodyLimit, max_bytes=service.settings.max_body_bytes)
    install_error_handlers(app, service.metrics)
    for router in (chat_router, completion_router, models_router, operations_router):
        app.include_router(router(service))
    return app
