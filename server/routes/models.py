"""GET /v1/models and /v1/models/{id}."""

import msgspec
from fastapi import APIRouter
from msgspec import UNSET
from starlette.responses import Response

from server.protocol.completion_objects import Model, ModelList
from server.service import Service


def models_router(service: Service) -> APIRouter:
    """The routes over `service`."""
    router = APIRouter()

    def model() -> Model:
        settings, status = service.settings, service.engine.figures.status
        longest = UNSET if status is None else status.info.max_model_len
        return Model(settings.served_model_name, settings.created, max_model_len=longest)

    @router.get("/v1/models")
    async def list_models() -> Response:
        return Response(msgspec.json.encode(ModelList([model()])), media_type="application/json")

    @router.get("/v1/models/{name:path}")
    async def retrieve_model(name: str) -> Response:
        service.check_model(name)
        return Response(msgspec.json.encode(model()), media_type="application/json")

    return router
