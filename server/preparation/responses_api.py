"""A request of the Responses API as the chat request that means the same. Pure."""

from typing import Any

from server.protocol.requests import ChatCompletionRequest
from server.protocol.responses_request import (
    AnyItem,
    ChosenTool,
    EarlierReasoning,
    FunctionCall,
    FunctionCallOutput,
    ResponsesRequest,
)

# How an error about the chat request names the parameter of the Responses API.
NAMES = {"messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text"}


def as_chat(body: ResponsesRequest) -> ChatCompletionRequest:
    """The chat request; whatever passed the checks of `body` passes those of the result."""
    messages = _messages(body.input)
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    tools = [
        {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
        for tool in body.tools or ()
    ]
    choice: Any = body.tool_choice
    if isinstance(choice, ChosenTool):
        choice = {"type": "function", "function": {"name": choice.name}}
    return ChatCompletionRequest.model_validate(
        {
            "model": body.model,
            "messages": messages,
            "tools": tools or None,
            "tool_choice": choice,
            "parallel_tool_calls": body.parallel_tool_calls,
            "response_format": _format(body),
            "max_completion_tokens": body.max_output_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "stream": body.stream,
            "priority": body.priority,
        }
    )


def _format(body: ResponsesRequest) -> dict[str, Any] | None:
    chosen = body.text.format if body.text is not None else None
    if chosen is None:
        return None
    if chosen.json_schema is None:
        return {"type": chosen.type}
    return {"type": "json_schema", "json_schema": {"name": chosen.name, "schema": chosen.json_schema}}


def _messages(items: list[AnyItem]) -> list[dict[str, Any]]:
    """Messages of a chat: what the assistant thought, said and called at a stretch is one of them."""
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None  # the assistant's, as long as it lasts
    for item in items:
        if isinstance(item, FunctionCallOutput):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
            turn = None
            continue
        if not isinstance(item, FunctionCall | EarlierReasoning) and item.role != "assistant":
            messages.append({"role": item.role, "content": item.content})
            turn = None
            continue
        if turn is None or (isinstance(item, EarlierReasoning) and "content" in turn):
            turn = {"role": "assistant"}
            messages.append(turn)
        _extend(turn, item)
    # Reasoning that led to nothing is no message.
    return [m for m in messages if m["role"] != "assistant" or m.keys() & {"content", "tool_calls"}]


def _extend(turn: dict[str, Any], item: AnyItem) -> None:
    if isinstance(item, EarlierReasoning):
        if item.content is not None:
            turn["reasoning_content"] = item.content
    elif isinstance(item, FunctionCall):
        function = {"name": item.name, "arguments": item.arguments}
        turn.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
    elif not isinstance(item, FunctionCallOutput):
        turn["content"] = f"{turn['content']}\n{item.content}" if "content" in turn else item.content
