"""POST /tokenize and /detokenize, GET /tokenizer_info, as vLLM spells them."""

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from pydantic import Field
from starlette.responses import JSONResponse, Response

from server.errors import bad_request
from server.preparation.intent import ChatIntent
from server.protocol.body import Body, JsonObject, Text
from server.protocol.requests import ChatCompletionRequest, ChatMessage
from server.protocol.tools import Tool
from server.service import Service


class TokenizeRequest(Body):
    """Body of /tokenize: either `prompt` or `messages`."""

    model: Text | None = None
    prompt: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: list[Tool] | None = None
    chat_template: Text | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool | None = None  # of a prompt; by default true
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """Body of /detokenize."""

    model: Text | None = None
    tokens: list[Annotated[int, Field(ge=0, le=2**31 - 1)]]


class Tokenized(msgspec.Struct, frozen=True):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(msgspec.Struct, frozen=True):
    """Answer of /detokenize."""

    prompt: str


def tokens_router(service: Service) -> APIRouter:
    """The routes over `service`."""
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Response:
        service.check_model(body.model or service.settings.served_model_name)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("send either 'prompt' or 'messages'", "prompt")
        limits = service.limits()
        tokens = await asyncio.to_thread(_encode, service, body)
        strings = [service.tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None
        return _json(Tokenized(len(tokens), limits.max_model_len, tokens, strings))

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Response:
        service.check_model(body.model or service.settings.served_model_name)
        vocab_size = service.limits().vocab_size
        if any(token >= vocab_size for token in body.tokens):
            raise bad_request(f"'tokens' has ids outside 0..{vocab_size - 1}", "tokens")
        return _json(Detokenized(await asyncio.to_thread(service.tokenizer.decode_all, body.tokens)))

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": None, **service.tokenizer.config}
        return JSONResponse(described | {"chat_template": service.preparation.chat_models.default_source})

    return router


def _encode(service: Service, body: TokenizeRequest) -> list[int]:
    if body.prompt is not None:
        return service.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    fields: dict[str, Any] = {
        "model": service.settings.served_model_name,
        "messages": body.messages,
        "tools": body.tools,
        "chat_template": body.chat_template,
        "chat_template_kwargs": body.chat_template_kwargs,
        "add_generation_prompt": body.add_generation_prompt,
    }
    return ChatIntent.of(ChatCompletionRequest(**fields), service.preparation.chat_models).encode()


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
