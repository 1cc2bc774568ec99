"""POST /v1/completions."""

from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.answering.answer import answer
from server.formatters.base import Envelope
from server.formatters.completion import CompletionFormat
from server.protocol.requests import CompletionRequest
from server.routes.body_route import BodyRoute
from server.service import Service


def completion_router(service: Service) -> APIRouter:
    """The route over `service`."""
    router = APIRouter(route_class=BodyRoute)

    @router.post("/v1/completions")
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        arrived = service.clock()
        service.check_model(body.model)
        size = len(await request.body())
        prepared = await service.preparation.completion(body, size, service.limits(), f"cmpl-{uuid4().hex}")
        envelope = Envelope(prepared, body.model, service.tokenizer, service.rehearsal)
        form = CompletionFormat(envelope, logprobs=body.logprobs)
        return await answer(service, request, prepared, form, arrived)

    return router
