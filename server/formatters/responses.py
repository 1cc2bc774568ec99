"""How the events of a generation are written for /v1/responses."""

import secrets
from collections.abc import Sequence
from typing import Any

from server.errors import ApiError
from server.formatters.base import ChunkUsage, Envelope, Output
from server.formatters.responses_items import Items
from server.output.assembler import Delta
from server.protocol.completion_objects import Usage
from server.protocol.responses_objects import (
    ErrorInfo,
    Event,
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    ResponseObject,
    ResponseUsage,
    Status,
)
from server.protocol.responses_request import ResponsesRequest


class ResponsesFormat:
    """One response; its stream ends with an event of its own kind instead of [DONE]."""

    last = None

    def __init__(self, envelope: Envelope, body: ResponsesRequest) -> None:
        self._envelope = envelope
        self._body = body
        self._items = Items(lambda prefix: f"{prefix}_{secrets.token_hex(16)}")
        self._status: Status = "in_progress"

    def opening(self, usage: ChunkUsage) -> list[Event]:
        """The response, before it has any output."""
        response = self._response(None)
        return [self._items.event(f"response.{kind}", response=response) for kind in ("created", "in_progress")]

    def chunks(self, delta: Delta, usage: ChunkUsage) -> list[Event]:
        """What the parts of `delta` add, and the end of the last item."""
        events = self._items.add(delta.parts)
        if delta.finish is not None:
            self._status = "incomplete" if delta.finish == "length" else "completed"
            events += self._items.finish(self._status)
        return events

    def ending(self, usage: Usage) -> list[Event]:
        """The whole response."""
        return [self._items.event(f"response.{self._status}", response=self._response(usage))]

    def failed(self, error: ApiError) -> list[Event]:
        """What went wrong, and the response as far as it came."""
        self._status = "failed"
        told = self._items.event("error", message=error.message, code=error.code, param=error.param)
        info = ErrorInfo(error.message)
        return [told, self._items.event("response.failed", response=self._response(None, info))]

    def event_name(self, chunk: Event) -> str:
        """The type of an event is its name, too."""
        return chunk.type

    def whole(self, outputs: Sequence[Output], usage: Usage) -> ResponseObject:
        """The response that is not streamed."""
        (output,) = outputs
        self.chunks(Delta(0, output.parts, output.tokens, output.finish), usage)
        return self._response(usage)

    def _response(self, usage: Usage | None, error: ErrorInfo | None = None) -> ResponseObject:
        envelope, body = self._envelope, self._body
        counted = None
        if usage is not None:
            counted = ResponseUsage(
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.total_tokens,
                InputDetails(usage.prompt_tokens_details.cached_tokens),
                OutputDetails(usage.completion_tokens_details.reasoning_tokens),
            )
        return ResponseObject(
            id=envelope.request.id,
            created_at=envelope.created,
            model=envelope.model,
            status=self._status,
            output=list(self._items.output),
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            temperature=1.0 if body.temperature is None else body.temperature,
            text={"format": {"type": "text"}} | (_dump(body.text) if body.text is not None else {}),
            tool_choice="auto" if body.tool_choice is None else _dump(body.tool_choice),
            tools=[{"parameters": None, "strict": None} | _dump(tool) for tool in body.tools or ()],
            top_p=1.0 if body.top_p is None else body.top_p,
            usage=counted,
            error=error,
            incomplete_details=IncompleteDetails() if self._status == "incomplete" else None,
            user=body.user,
            echelon=envelope.mark,
        )


def _dump(value: Any) -> Any:
    return value if isinstance(value, str) else value.model_dump(by_alias=True, exclude_none=True)
