"""What POST /v1/responses answers: the response with its items, and the events of its stream."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """The text of reasoning."""

    text: str


class MessageItem(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """What the model says."""

    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class CallItem(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A function the model calls."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


class ReasoningItem(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """What the model thought."""

    id: str
    status: Status
    content: list[ReasoningText]
    summary: list[Any] = []


OutputItem = MessageItem | CallItem | ReasoningItem


class ErrorInfo(msgspec.Struct, frozen=True):
    """Why a response failed."""

    message: str
    code: str = "server_error"


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class InputDetails(msgspec.Struct, frozen=True):
    """Of the input tokens."""

    cached_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """Of the output tokens."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """Tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens_details: OutputDetails = OutputDetails()


class ReasoningChoice(msgspec.Struct, frozen=True):
    """There is nothing to choose."""

    effort: None = None
    summary: None = None


class ResponseObject(msgspec.Struct, frozen=True):
    """The response; most of its fields repeat the request."""

    id: str
    created_at: int
    model: str
    status: Status
    output: list[OutputItem]
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    usage: ResponseUsage | None = None
    error: ErrorInfo | None = None
    incomplete_details: IncompleteDetails | None = None
    object: Literal["response"] = "response"
    background: bool = False
    store: bool = False
    truncation: Literal["disabled"] = "disabled"
    top_logprobs: int = 0
    service_tier: str = "default"
    previous_response_id: None = None
    reasoning: ReasoningChoice = ReasoningChoice()
    user: str | None = None
    echelon: Any = UNSET


class Event(msgspec.Struct, frozen=True):
    """An event of the stream; which of the fields it has depends on its type."""

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET
    message: str | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    param: str | UnsetType | None = UNSET
