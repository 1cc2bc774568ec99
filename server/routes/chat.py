"""POST /v1/chat/completions."""

from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.answering.answer import answer
from server.formatters.base import Envelope
from server.formatters.chat import ChatFormat
from server.protocol.requests import ChatCompletionRequest
from server.routes.body_route import BodyRoute
from server.service import Service


def chat_router(service: Service) -> APIRouter:
    """The route over `service`."""
    router = APIRouter(route_class=BodyRoute)

    @router.post("/v1/chat/completions")
    async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
        arrived = service.clock()
        service.check_model(body.model)
        size = len(await request.body())
        prepared = await service.preparation.chat(body, size, service.limits(), f"chatcmpl-{uuid4().hex}")
        envelope = Envelope(prepared, body.model, service.tokenizer, service.rehearsal)
        return await answer(service, request, prepared, ChatFormat(envelope), arrived)

    return router
