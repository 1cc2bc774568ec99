"""POST /v1/responses."""

from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.answering.answer import answer
from server.errors import ApiError
from server.formatters.base import Envelope
from server.formatters.responses import ResponsesFormat
from server.preparation.responses_api import NAMES, as_chat
from server.protocol.responses_request import ResponsesRequest
from server.routes.body_route import BodyRoute
from server.service import Service


def responses_router(service: Service) -> APIRouter:
    """The route over `service`."""
    router = APIRouter(route_class=BodyRoute)

    @router.post("/v1/responses")
    async def create_response(request: Request, body: ResponsesRequest) -> Response:
        arrived = service.clock()
        service.check_model(body.model)
        size = len(await request.body())
        try:
            prepared = await service.preparation.chat(as_chat(body), size, service.limits(), f"resp_{uuid4().hex}")
        except ApiError as error:
            raise _renamed(error) from error
        envelope = Envelope(prepared, body.model, service.tokenizer, service.rehearsal)
        form = ResponsesFormat(envelope, body)
        return await answer(service, request, prepared, form, arrived)

    return router


def _renamed(error: ApiError) -> ApiError:
    """The same error in terms of this endpoint's parameters."""
    name = NAMES.get(error.param or "")
    if name is None:
        return error
    message = error.message.replace(f"'{error.param}'", f"'{name}'")
    return ApiError(error.status, message, param=name, code=error.code, headers=error.headers)
