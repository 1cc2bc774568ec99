"""From the body of a request to everything that is needed to answer it. Raises `ApiError`."""

import secrets
from dataclasses import dataclass, replace

from server.preparation.beside import beside_the_loop
from server.preparation.chat_model import ChatModels
from server.preparation.intent import ChatIntent
from server.preparation.sequences import Limits, PreparedRequest, prepared_chat, prepared_completion
from server.protocol.requests import ChatCompletionRequest, CompletionRequest
from server.protocol.unsupported import refuse_unsupported
from server.structured_output.compile import GrammarChecker
from server.structured_output.grammars import restrict
from server.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True)
class Preparation:
    """What of a model is needed to check and encode requests. `size` is that of a body in bytes: what takes long is
    done beside the event loop.
    """

    tokenizer: ModelTokenizer
    chat_models: ChatModels
    grammars: GrammarChecker

    async def chat(self, body: ChatCompletionRequest, size: int, limits: Limits, request_id: str) -> PreparedRequest:
        """Of /v1/chat/completions, and of whatever can be said as such a request."""
        refuse_unsupported(body)
        intent = ChatIntent.of(body, self.chat_models)
        prompt = await beside_the_loop(size, intent.encode)
        reading, restriction = intent.after(prompt)
        prepared = prepared_chat(body, request_id, prompt, limits, _draw_seed, restriction)
        if restriction is not None:
            await self.grammars.check(restriction)
        return replace(prepared, reading=reading)

    async def completion(self, body: CompletionRequest, size: int, limits: Limits, request_id: str) -> PreparedRequest:
        """Of /v1/completions."""
        refuse_unsupported(body)
        prompts = await beside_the_loop(size, self._encode, body.prompt)
        restriction = restrict(body)
        prepared = prepared_completion(body, request_id, prompts, limits, _draw_seed, restriction)
        if restriction is not None:
            await self.grammars.check(restriction)
        return replace(prepared, echo=[self._text(prompt) for prompt in body.prompt] if body.echo else None)

    def _encode(self, prompts: list[str | list[int]]) -> list[list[int]]:
        encode = self.tokenizer.encode
        return [encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt for prompt in prompts]

    def _text(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self.tokenizer.decode_all(prompt)


def _draw_seed() -> int:
    """A random seed of 63 bits, for requests that give none."""
    return secrets.randbits(63)
