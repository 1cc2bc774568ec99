"""Chat completions: /v1/chat/completions, whole or in chunks."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from server.formatters.base import ChunkUsage, DataStream, Envelope, Output
from server.output.assembler import Delta
from server.output.logprobs import chat_logprobs
from server.output.parts import CallPiece, Part, Reasoning, Text, reasoning_of, text_of
from server.protocol.completion_objects import (
    AnswerMessage,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    FunctionDelta,
    MessageDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)


class ChatFormat(DataStream):
    """/v1/chat/completions."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    def opening(self, usage: ChunkUsage) -> list[ChatChunk]:
        """The role of each choice."""
        prompt = self._prompt_token_ids()
        role = MessageDelta(role="assistant", content="")
        indices = range(len(self._envelope.request.generates))
        return [
            self._chunk([ChatChunkChoice(index, role)], usage, prompt if index == 0 else UNSET) for index in indices
        ]

    def chunks(self, delta: Delta, usage: ChunkUsage) -> list[ChatChunk]:
        """A chunk for each part, the tokens with the first of them, then the finish reason in a chunk of its own."""
        logprobs = chat_logprobs(delta.tokens, self._envelope.tokenizer) if delta.tokens else None
        token_ids = self._envelope.token_ids(delta.tokens)
        messages = [_message_delta(part) for part in delta.parts]
        if not messages and (logprobs is not None or token_ids):
            messages = [MessageDelta(content="")]
        choices = []
        for place, message in enumerate(messages):
            first = place == 0
            choices.append(
                ChatChunkChoice(delta.index, message, logprobs if first else None, None, token_ids if first else UNSET)
            )
        if delta.finish is not None:
            choices.append(ChatChunkChoice(delta.index, MessageDelta(), finish_reason=delta.finish))
        return [self._chunk([choice], usage) for choice in choices]

    def ending(self, usage: Usage) -> list[ChatChunk]:
        """A chunk with the usage and no choices, if it was asked for."""
        return [self._chunk([], usage)] if self._envelope.request.include_usage else []

    def whole(self, outputs: Sequence[Output], usage: Usage) -> ChatCompletion:
        """The response that is not streamed."""
        envelope = self._envelope
        choices = [
            ChatChoice(
                index,
                _message(output.parts),
                chat_logprobs(output.tokens, envelope.tokenizer),
                output.finish,
                envelope.token_ids(output.tokens),
            )
            for index, output in enumerate(outputs)
        ]
        return ChatCompletion(
            envelope.request.id,
            envelope.created,
            envelope.model,
            choices,
            usage,
            prompt_token_ids=self._prompt_token_ids(),
            echelon=envelope.mark,
        )

    def _prompt_token_ids(self) -> list[int] | UnsetType:
        return self._envelope.request.prompts[0] if self._envelope.request.return_token_ids else UNSET

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        usage: ChunkUsage,
        prompt_token_ids: list[int] | UnsetType = UNSET,
    ) -> ChatChunk:
        envelope = self._envelope
        return ChatChunk(
            envelope.request.id,
            envelope.created,
            envelope.model,
            choices,
            usage=usage,
            prompt_token_ids=prompt_token_ids,
            echelon=envelope.mark,
        )


def _message(parts: Sequence[Part]) -> AnswerMessage:
    text, reasoning, calls = text_of(parts), reasoning_of(parts), whole_calls(parts)
    return AnswerMessage(
        content=text if text or not calls else None,
        reasoning_content=reasoning or UNSET,
        tool_calls=[ToolCall(call.id or "", CalledFunction(call.name or "", call.arguments)) for call in calls]
        or UNSET,
    )


def _message_delta(part: Part) -> MessageDelta:
    if isinstance(part, Text):
        return MessageDelta(content=part.text)
    if isinstance(part, Reasoning):
        return MessageDelta(reasoning_content=part.text)
    if part.id is None:
        return MessageDelta(tool_calls=[ToolCallDelta(part.index, FunctionDelta(part.arguments))])
    function = FunctionDelta(part.arguments, part.name or UNSET)
    return MessageDelta(tool_calls=[ToolCallDelta(part.index, function, part.id, "function")])


def whole_calls(parts: Sequence[Part]) -> list[CallPiece]:
    """Each call with all of its arguments."""
    calls: dict[int, CallPiece] = {}
    for part in parts:
        if isinstance(part, CallPiece):
            known = calls.get(part.index)
            if known is not None:
                part = CallPiece(known.index, known.arguments + part.arguments, known.id, known.name)
            calls[part.index] = part
    return list(calls.values())
