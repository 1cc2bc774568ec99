"""What one chat request wants, made of its body once: all that follows works with this. Pure; raises `ApiError`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.errors import bad_request
from server.preparation.chat_model import ChatModel, ChatModels
from server.preparation.explained_tools import explain_tools
from server.preparation.reading import Reading, choose_reading
from server.protocol.requests import ChatCompletionRequest, ChatMessage
from server.protocol.structured_output import ANY_OBJECT, StructuredFields
from server.protocol.tools import NamedTool, Tool
from server.structured_output.grammars import CallGrammar, Restriction, Thinking, restrict
from server.tool_parsers.dialects import Dialect


@dataclass(frozen=True, slots=True)
class ChatIntent:
    """One conversation, as the model's template sees it, and what the answer may consist of."""

    model: ChatModel
    messages: list[dict[str, Any]]
    variables: dict[str, Any]  # further ones for the template
    add_generation_prompt: bool
    reads_calls: bool
    parallel: bool  # the answer may hold several calls
    calls: CallGrammar | None  # that a grammar has to know; None if the model may call as it likes, or not at all
    restrictions: StructuredFields

    @classmethod
    def of(cls, body: ChatCompletionRequest, models: ChatModels) -> "ChatIntent":
        """What `body` asks of one of `models`."""
        _check_tools(body)
        offered = [] if body.tool_choice == "none" else list(body.tools or ())
        parallel = body.parallel_tool_calls is not False
        model = models.choose(body.chat_template, tools=bool(offered))
        messages = _opening_joined([_template_message(message) for message in body.messages])
        variables = dict(body.chat_template_kwargs or {})
        tools = [tool.model_dump(exclude_none=True) for tool in offered]
        if model.native_tools:
            variables["tools"] = tools or None
        else:
            messages = explain_tools(messages, tools)
        return cls(
            model,
            messages,
            variables,
            body.add_generation_prompt is not False,
            bool(offered),
            parallel,
            _calls(body, model.dialect, offered, parallel),
            body,
        )

    def encode(self) -> list[int]:
        """The prompt's tokens."""
        try:
            prompt = self.model.prompts.encode(
                self.messages, add_generation_prompt=self.add_generation_prompt, extra=self.variables
            )
        except ValueError as error:
            raise bad_request(str(error), "messages") from error
        if not prompt:
            raise bad_request("the model's chat template makes an empty prompt of these messages", "messages")
        return prompt

    def after(self, prompt: Sequence[int]) -> tuple[Reading, Restriction | None]:
        """How the answers after `prompt` are read, and the grammar that restricts them."""
        model = self.model
        opened = model.opened(prompt)
        reading = choose_reading(
            model.dialect if self.reads_calls or model.dialect.whole else None,
            single=not self.parallel,
            forced=self.calls is not None and self.calls.place == "alone",
            reasoning=model.reasoning,
            opened=opened,
            markers=model.markers,
        )
        thinking = Thinking(opened) if model.reasoning else None
        return reading, restrict(self.restrictions, self.calls, thinking=thinking, literal=model.literal)


def _check_tools(body: ChatCompletionRequest) -> None:
    """Where `tools` and `tool_choice` contradict each other."""
    names = [tool.function.name for tool in body.tools or ()]
    if len(set(names)) < len(names):
        raise bad_request("'tools' has two functions of the same name", "tools")
    choice = body.tool_choice
    if choice not in (None, "none", "auto") and not names:
        raise bad_request("'tool_choice' needs 'tools'", "tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise bad_request(f"'tool_choice' names '{choice.function.name}', which is not in 'tools'", "tool_choice")


def _calls(body: ChatCompletionRequest, dialect: Dialect, tools: Sequence[Tool], parallel: bool) -> CallGrammar | None:
    choice = body.tool_choice
    schemas = {tool.function.name: tool.function.parameters for tool in tools}
    if isinstance(choice, NamedTool):
        name = choice.function.name
        return CallGrammar(dialect, {name: schemas[name]}, parallel=False, place="alone")
    if tools and choice == "required":
        return CallGrammar(dialect, schemas, parallel, place="alone")
    if tools and body.restrictions:
        return CallGrammar(dialect, schemas, parallel, place="instead")
    strict = [tool.function.name for tool in tools if tool.function.strict]
    if not strict:
        return None
    if dialect.begins_with is None:
        raise bad_request(
            f"'strict' of the function '{strict[0]}' in 'tools' cannot be enforced with 'tool_choice' auto: this "
            f"model's calls ({dialect.name}) begin like any JSON text. Remove 'strict', or require a call",
            "tools",
        )
    free = {name: schema if name in strict else ANY_OBJECT for name, schema in schemas.items()}
    return CallGrammar(dialect, free, parallel, place="between")


def _template_message(message: ChatMessage) -> dict[str, Any]:
    """What the template sees: fields without a value are absent, as templates test for them."""
    fields: dict[str, Any] = message.model_dump(exclude_none=True, exclude={"tool_calls"})
    fields.setdefault("content", "")
    if message.role == "developer":
        fields["role"] = "system"
    if message.tool_calls:
        # Templates write the arguments as JSON themselves, and would quote a string.
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.shown},
            }
            for call in message.tool_calls
        ]
    return fields


def _opening_joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages with one system message where several open the conversation: many templates take but one."""
    count = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2:
        return messages
    content = "\n\n".join(message["content"] for message in messages[:count])
    return [messages[0] | {"content": content}, *messages[count:]]
