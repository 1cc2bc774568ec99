"""How the events of a generation are written: as a chat completion or a plain completion, whole or in chunks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from server.assembler import Delta, ShownToken
from server.logprobs import chat_logprobs, completion_logprobs
from server.plan import Plan
from server.responses import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    MessageDelta,
    Rehearsal,
    Usage,
)
from server.tokenizer import ModelTokenizer


@dataclass(slots=True)
class Output:
    """All deltas of one choice, added up."""

    text: str = ""
    tokens: list[ShownToken] = field(default_factory=list)
    finish: str | None = None

    def add(self, delta: Delta) -> None:
        """Adds the next delta of this choice."""
        self.text += delta.text
        self.tokens += delta.tokens
        self.finish = delta.finish or self.finish


class AnswerFormat(Protocol):
    """What an endpoint does differently from the others."""

    def opening(self) -> Sequence[msgspec.Struct]:
        """Chunks to send before the first token."""

    def chunks(self, delta: Delta) -> Sequence[msgspec.Struct]:
        """Chunks that carry `delta`."""

    def closing(self, usage: Usage) -> msgspec.Struct:
        """The chunk with the usage and no choices."""

    def whole(self, outputs: Sequence[Output], usage: Usage) -> msgspec.Struct:
        """The response that is not streamed."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk and response repeats."""

    plan: Plan
    model: str
    tokenizer: ModelTokenizer
    rehearsal: bool
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def mark(self) -> Rehearsal | UnsetType:
        """The field that says that the text means nothing, if so."""
        return Rehearsal() if self.rehearsal else UNSET

    @property
    def chunk_usage(self) -> UnsetType | None:
        """`usage` of every chunk but the last."""
        return None if self.plan.include_usage else UNSET

    def token_ids(self, tokens: Sequence[ShownToken]) -> list[int] | UnsetType:
        """`token_ids`, if asked for."""
        return [item.token for item in tokens] if self.plan.return_token_ids else UNSET


class ChatFormat:
    """/v1/chat/completions."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    def opening(self) -> list[ChatChunk]:
        """The role of each choice."""
        prompt = self._prompt_token_ids()
        role = MessageDelta(role="assistant", content="")
        indices = range(len(self._envelope.plan.generates))
        return [self._chunk([ChatChunkChoice(index, role)], prompt if index == 0 else UNSET) for index in indices]

    def chunks(self, delta: Delta) -> list[ChatChunk]:
        """Text and tokens, then the finish reason in a chunk of its own."""
        choices = []
        logprobs = chat_logprobs(delta.tokens, self._envelope.tokenizer) if delta.tokens else None
        token_ids = self._envelope.token_ids(delta.tokens)
        if delta.text or logprobs is not None or token_ids:
            choices.append(ChatChunkChoice(delta.index, MessageDelta(content=delta.text), logprobs, None, token_ids))
        if delta.finish is not None:
            choices.append(ChatChunkChoice(delta.index, MessageDelta(), finish_reason=delta.finish))
        return [self._chunk([choice]) for choice in choices]

    def closing(self, usage: Usage) -> ChatChunk:
        """The chunk with the usage and no choices."""
        return self._chunk([], usage=usage)

    def whole(self, outputs: Sequence[Output], usage: Usage) -> ChatCompletion:
        """The response that is not streamed."""
        envelope = self._envelope
        choices = [
            ChatChoice(
                index,
                AnswerMessage(output.text),
                chat_logprobs(output.tokens, envelope.tokenizer),
                output.finish,
                envelope.token_ids(output.tokens),
            )
            for index, output in enumerate(outputs)
        ]
        return ChatCompletion(
            envelope.plan.id,
            envelope.created,
            envelope.model,
            choices,
            usage,
            prompt_token_ids=self._prompt_token_ids(),
            echelon=envelope.mark,
        )

    def _prompt_token_ids(self) -> list[int] | UnsetType:
        return self._envelope.plan.prompts[0] if self._envelope.plan.return_token_ids else UNSET

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        prompt_token_ids: list[int] | UnsetType = UNSET,
        usage: Usage | None = None,
    ) -> ChatChunk:
        envelope = self._envelope
        return ChatChunk(
            envelope.plan.id,
            envelope.created,
            envelope.model,
            choices,
            usage=envelope.chunk_usage if usage is None else usage,
            prompt_token_ids=prompt_token_ids,
            echelon=envelope.mark,
        )


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
        choice = self._choice(delta.index, Output(delta.text, delta.tokens, delta.finish))
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
