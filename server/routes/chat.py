"""POST /v1/chat/completions."""

import asyncio
from typing import Any
from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.answer import answer
from server.chat_format import ChatFormat
from server.errors import bad_request
from server.formats import Envelope
from server.plan import plan_chat
from server.protocol import ChatCompletionRequest, ChatMessage
from server.routes.seeds import draw_seed
from server.service import Service, engine_errors
from server.unsupported import refuse_unsupported


def chat_router(service: Service) -> APIRouter:
    """The route over `service`."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
        arrived = service.clock()
        service.check_model(body.model)
        refuse_unsupported(body)
        with engine_errors():
            limits = service.limits()
        prompt = await asyncio.to_thread(_encode, service, body)
        plan = plan_chat(body, f"chatcmpl-{uuid4().hex}", prompt, limits, draw_seed)
        envelope = Envelope(plan, body.model, service.tokenizer, service.rehearsal)
        return await answer(service, request, plan, ChatFormat(envelope), arrived)

    return router


def _encode(service: Service, body: ChatCompletionRequest) -> list[int]:
    if service.chat is None:
        raise bad_request("this model has no chat template; use /v1/completions", "messages")
    add_generation_prompt = body.add_generation_prompt is not False
    try:
        prompt = service.chat.encode(
            [_template_message(message) for message in body.messages],
            add_generation_prompt=add_generation_prompt,
            extra=body.chat_template_kwargs,
        )
    except ValueError as error:
        raise bad_request(str(error), "messages") from error
    if not prompt:
        raise bad_request("the model's chat template makes an empty prompt of these messages", "messages")
    return prompt


def _template_message(message: ChatMessage) -> dict[str, Any]:
    """What the template sees: fields without a value are absent, as templates test for them."""
    fields = message.model_dump(exclude_none=True)
    if message.role == "developer":
        fields["role"] = "system"
    return fields
