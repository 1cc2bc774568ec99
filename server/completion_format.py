"""Plain completions: /v1/completions, whole or in chunks."""

from collections.abc import Sequence

import msgspec
from msgspec import UnsetType

from server.assembler import Delta
from server.formats import Envelope, Output
from server.logprobs import completion_logprobs
from server.responses import Completion, CompletionChoice, Usage


class CompletionFormat:
    """/v1/completions; `top_logprobs` says whether the most likely tokens were asked for."""

    def __init__(self, envelope: Envelope, *, top_logprobs: bool) -> None:
        self._envelope = envelope
        self._top_logprobs = top_logprobs

    def opening(self) -> list[Completion]:
        """The tokens of the prompt, if they were asked for."""
        if not self._envelope.plan.return_token_ids:
            return []
        prompts = [generate.prompt for generate in self._envelope.plan.generates]
        return [
            self._response([CompletionChoice(index, "", None, None, [], prompt)], self._envelope.chunk_usage)
            for index, prompt in enumerate(prompts)
        ]

    def chunks(self, delta: Delta) -> list[Completion]:
        """One chunk, unless there is nothing to tell."""
        choice = self._choice(delta.index, Output(delta.parts, delta.tokens, delta.finish))
        if not delta.text and delta.finish is None and choice.logprobs is None and not choice.token_ids:
            return []
        return [self._response([choice], self._envelope.chunk_usage)]

    def closing(self, usage: Usage) -> Completion:
        """The chunk with the usage and no choices."""
        return self._response([], usage)

    def whole(self, outputs: Sequence[Output], usage: Usage) -> Completion:
        """The response that is not streamed."""
        choices = [self._choice(index, output) for index, output in enumerate(outputs)]
        if self._envelope.plan.return_token_ids:
            generates = self._envelope.plan.generates
            choices = [
                msgspec.structs.replace(choice, prompt_token_ids=generate.prompt)
                for choice, generate in zip(choices, generates, strict=True)
            ]
        return self._response(choices, usage)

    def _choice(self, index: int, output: Output) -> CompletionChoice:
        envelope = self._envelope
        logprobs = completion_logprobs(output.tokens, envelope.tokenizer, self._top_logprobs) if output.tokens else None
        return CompletionChoice(index, output.text, logprobs, output.finish, envelope.token_ids(output.tokens))

    def _response(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        envelope = self._envelope
        return Completion(
            envelope.plan.id, envelope.created, envelope.model, choices, usage=usage, echelon=envelope.mark
        )
