"""POST /v1/completions."""

from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.errors import bad_request
from server.formatters.answer import answer
from server.formatters.base import Envelope
from server.formatters.completion import CompletionFormat
from server.preparation.beside import beside_the_loop
from server.preparation.seeds import draw_seed
from server.preparation.sequences import plan_completion
from server.protocol.requests import CompletionRequest
from server.protocol.unsupported import refuse_unsupported
from server.service import Service, engine_errors
from server.structured_output.grammars import restrict


def completion_router(service: Service) -> APIRouter:
    """The route over `service`."""
    router = APIRouter()

    @router.post("/v1/completions")
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        arrived = service.clock()
        service.check_model(body.model)
        refuse_unsupported(body)
        if body.echo and body.logprobs is not None:
            raise bad_request(
                "'echo' cannot be combined with 'logprobs': there are none of the prompt; remove one", "echo"
            )
        with engine_errors():
            limits = service.limits()
        prompts = await beside_the_loop(len(await request.body()), _encode, service, body.prompt)
        restriction = restrict(body, None, thinking=None, literal=service.literal)
        plan = plan_completion(body, f"cmpl-{uuid4().hex}", prompts, limits, draw_seed, restriction)
        if restriction is not None:
            await service.grammars.check(restriction)
        envelope = Envelope(plan, body.model, service.tokenizer, service.rehearsal)
        echo = [_text(service, prompt) for prompt in body.prompt] if body.echo else None
        form = CompletionFormat(envelope, top_logprobs=bool(body.logprobs), echo=echo)
        return await answer(service, request, plan, form, arrived)

    return router


def _encode(service: Service, prompts: list[str | list[int]]) -> list[list[int]]:
    encode = service.tokenizer.encode
    return [encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt for prompt in prompts]


def _text(service: Service, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else service.tokenizer.decode_all(prompt)
