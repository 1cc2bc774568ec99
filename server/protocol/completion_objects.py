"""Bodies of OpenAI's responses and stream chunks. `UNSET` leaves a field out; None is written as null."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class RehearsalMark(msgspec.Struct, frozen=True):
    """Marks a response whose text means nothing."""

    rehearsal: Literal[True] = True
    note: str = "the engine accepts drafts by chance (--scripted-acceptance): the text means nothing"


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Part of `Usage`."""

    cached_tokens: int = 0  # that were in the KV cache already


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Part of `Usage`."""

    reasoning_tokens: int = 0  # up to the last one whose text is reasoning


class Usage(msgspec.Struct, frozen=True):
    """Tokens, with the one that ended each choice."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()


class Model(msgspec.Struct, frozen=True):
    """An entry of /v1/models."""

    id: str
    created: int  # Unix seconds
    object: Literal["model"] = "model"
    owned_by: str = "echelon"
    max_model_len: int | UnsetType = UNSET  # tokens, once the engine has said so


class ModelList(msgspec.Struct, frozen=True):
    """Body of /v1/models."""

    data: list[Model]
    object: Literal["list"] = "list"


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that was considered."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """A token that was chosen, and the most likely ones."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Logprobs in the shape of chat completions."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Logprobs in the shape of plain completions: one entry a token in each list, null for a prompt's first."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]  # characters, from the start of the choice's text


class CalledFunction(msgspec.Struct, frozen=True):
    """Which function a call is for; `arguments` is JSON text as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    """One tool call."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class AnswerMessage(msgspec.Struct, frozen=True):
    """The assistant's message; `content` is null where there are only tool calls."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to a call; the name comes once, whole."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to the tool call at `index`."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class MessageDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to the assistant's message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One complete answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """What a chunk adds to one answer."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    """One complete text, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True):
    """Body of /v1/chat/completions."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    prompt_token_ids: list[int] | UnsetType = UNSET
    echelon: RehearsalMark | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True):
    """An event of a streamed chat completion."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    echelon: RehearsalMark | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True):
    """Body of /v1/completions, and an event of its stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET
    echelon: RehearsalMark | UnsetType = UNSET
