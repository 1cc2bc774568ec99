"""From the body of a chat request to everything that is needed to answer it."""

from dataclasses import dataclass

from server.errors import bad_request
from server.output.reading import Reading
from server.preparation.abilities import check_tools
from server.preparation.beside import beside_the_loop
from server.preparation.seeds import draw_seed
from server.preparation.sequences import Plan, plan_chat
from server.protocol.requests import ChatCompletionRequest
from server.protocol.unsupported import refuse_unsupported
from server.service import Service, engine_errors


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat request, checked and encoded."""

    plan: Plan
    reading: Reading


async def prepare_chat(service: Service, body: ChatCompletionRequest, size: int, request_id: str) -> PreparedChat:
    """Checks and encodes a body of `size` bytes; what takes long does so beside the event loop. Raises `ApiError`."""
    refuse_unsupported(body)
    check_tools(body)
    with engine_errors():
        limits = service.limits()
    prompt = await beside_the_loop(size, encode_chat, service, body)
    reading = service.chat_model.reading(body, prompt, service.tokenizer)
    restriction = service.chat_model.restriction(body, prompt, service.tokenizer, service.literal)
    plan = plan_chat(body, request_id, prompt, limits, draw_seed, restriction)
    if restriction is not None:
        await service.grammars.check(restriction)
    return PreparedChat(plan, reading)


def encode_chat(service: Service, body: ChatCompletionRequest) -> list[int]:
    """The prompt's tokens; raises `ApiError`."""
    if service.chat is None:
        raise bad_request("this model has no chat template; use /v1/completions", "messages")
    messages, variables = service.chat_model.template_input(body)
    try:
        prompt = service.chat.encode(
            messages, add_generation_prompt=body.add_generation_prompt is not False, extra=variables
        )
    except ValueError as error:
        raise bad_request(str(error), "messages") from error
    if not prompt:
        raise bad_request("the model's chat template makes an empty prompt of these messages", "messages")
    return prompt
