"""Plain completions: /v1/completions, whole or in chunks."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from server.formatters.base import ChunkUsage, DataStream, Envelope, Output
from server.output.assembler import Delta
from server.output.logprobs import completion_logprobs
from server.protocol.completion_objects import Completion, CompletionChoice, Usage


class CompletionFormat(DataStream):
    """/v1/completions; `logprobs` says of how many of the most likely tokens they were asked for, if at all."""

    def __init__(self, envelope: Envelope, *, logprobs: int | None) -> None:
        self._envelope = envelope
        self._logprobs = logprobs

    def opening(self, usage: ChunkUsage) -> list[Completion]:
        """The text and the tokens of each choice's prompt, if they were asked for."""
        request = self._envelope.request
        if request.echo is None and not request.return_token_ids:
            return []
        return [
            self._response(
                [
                    CompletionChoice(
                        index,
                        self._prompt_text(index),
                        None,
                        None,
                        self._envelope.token_ids([]),
                        generate.prompt if request.return_token_ids else UNSET,
                    )
                ],
                usage,
            )
            for index, generate in enumerate(request.generates)
        ]

    def chunks(self, delta: Delta, usage: ChunkUsage) -> list[Completion]:
        """One chunk, unless there is nothing to tell."""
        choice = self._choice(delta.index, Output(delta.parts, delta.tokens, delta.prompt, delta.finish))
        if not delta.text and delta.finish is None and choice.logprobs is None and not choice.token_ids:
            return []
        return [self._response([choice], usage)]

    def ending(self, usage: Usage) -> list[Completion]:
        """A chunk with the usage and no choices, if it was asked for."""
        return [self._response([], usage)] if self._envelope.request.include_usage else []

    def whole(self, outputs: Sequence[Output], usage: Usage) -> Completion:
        """The response that is not streamed."""
        choices = [self._choice(index, output, repeat=True) for index, output in enumerate(outputs)]
        if self._envelope.request.return_token_ids:
            generates = self._envelope.request.generates
            choices = [
                msgspec.structs.replace(choice, prompt_token_ids=generate.prompt)
                for choice, generate in zip(choices, generates, strict=True)
            ]
        return self._response(choices, usage)

    def _prompt_text(self, index: int) -> str:
        request = self._envelope.request
        return "" if request.echo is None else request.echo[index // request.n]

    def _choice(self, index: int, output: Output, *, repeat: bool = False) -> CompletionChoice:
        """`repeat` says to begin with the prompt, if it was asked for."""
        envelope, before = self._envelope, self._prompt_text(index)
        logprobs = None
        if self._logprobs is not None and (output.prompt or output.tokens):
            logprobs = completion_logprobs(
                output.prompt, output.tokens, envelope.tokenizer, top=self._logprobs > 0, start=len(before)
            )
        text = before + output.text if repeat else output.text
        return CompletionChoice(index, text, logprobs, output.finish, envelope.token_ids(output.tokens))

    def _response(self, choices: list[CompletionChoice], usage: ChunkUsage) -> Completion:
        envelope = self._envelope
        return Completion(
            envelope.request.id, envelope.created, envelope.model, choices, usage=usage, echelon=envelope.mark
        )
