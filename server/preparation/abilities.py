"""What a model's files say about tools and reasoning, and what follows for one chat request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.errors import bad_request
from server.output.reading import Reading, choose_reading
from server.output.reasoning_parser import CLOSE, OPEN
from server.preparation.explained_tools import explain_tools
from server.protocol.requests import ChatCompletionRequest, ChatMessage
from server.protocol.structured_output import ANY_OBJECT
from server.protocol.tools import NamedTool, Tool
from server.structured_output.grammars import Calls, Restriction, Spelling, Thinking, restrict
from server.tokenizer import ModelTokenizer
from server.tool_parsers.dialects import Dialect, choose_dialect

_TAIL = 16  # tokens of the prompt in which an opened block of reasoning is looked for


@dataclass(frozen=True, slots=True)
class ChatModel:
    """How one model writes tool calls and reasoning."""

    dialect: Dialect
    native_tools: bool  # its chat template shows tools to it
    reasoning: bool

    @classmethod
    def of(cls, template: str, tokenizer: ModelTokenizer, wanted: str | None) -> "ChatModel":
        """From the source of the chat template; raises `ConfigError` for a `wanted` dialect there is not."""
        dialect, native = choose_dialect(template, tokenizer.control_tokens, wanted)
        return cls(dialect, native, CLOSE in template or CLOSE in tokenizer.control_tokens)

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that mark calls and reasoning, and may be control tokens."""
        return (*self.dialect.markers, *((OPEN, CLOSE) if self.reasoning else ()))

    def template_input(self, body: ChatCompletionRequest) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Messages and further variables for the chat template."""
        messages = [_template_message(message) for message in body.messages]
        offered = _offered(body)
        tools = [tool.model_dump(exclude_none=True) for tool in offered]
        if not self.native_tools:
            return explain_tools(messages, tools), dict(body.chat_template_kwargs or {})
        return messages, {**(body.chat_template_kwargs or {}), "tools": tools or None}

    def reading(self, body: ChatCompletionRequest, prompt: Sequence[int], tokenizer: ModelTokenizer) -> Reading:
        """How the answers after `prompt` are read."""
        dialect = self.dialect if _offered(body) else None
        markers = () if dialect is None and not self.reasoning else self.markers
        control = tokenizer.control_tokens
        return choose_reading(
            dialect,
            single=not _parallel(body),
            reasoning=self.reasoning,
            opened=self._opened(prompt, tokenizer),
            kept=frozenset(control[marker] for marker in markers if marker in control),
        )

    def restriction(
        self, body: ChatCompletionRequest, prompt: Sequence[int], tokenizer: ModelTokenizer, literal: Spelling
    ) -> Restriction | None:
        """The grammar of the answers after `prompt`; raises `ApiError`."""
        thinking = Thinking(self._opened(prompt, tokenizer)) if self.reasoning else None
        return restrict(body, self._calls(body), thinking=thinking, literal=literal)

    def _calls(self, body: ChatCompletionRequest) -> Calls | None:
        """The calls that a grammar has to know; None if the model may call as it likes, or not at all."""
        tools, choice = _offered(body), body.tool_choice
        schemas = {tool.function.name: tool.function.parameters for tool in tools}
        if isinstance(choice, NamedTool):
            name = choice.function.name
            return Calls(self.dialect, {name: schemas[name]}, parallel=False, place="alone")
        if tools and choice == "required":
            return Calls(self.dialect, schemas, _parallel(body), place="alone")
        if tools and body.restrictions:
            return Calls(self.dialect, schemas, _parallel(body), place="instead")
        strict = [tool.function.name for tool in tools if tool.function.strict]
        if not strict:
            return None
        if self.dialect.begins_with is None:
            raise bad_request(
                f"'strict' of the function '{strict[0]}' in 'tools' cannot be enforced with 'tool_choice' auto: this "
                f"model's calls ({self.dialect.name}) begin like any JSON text. Remove 'strict', or require a call",
                "tools",
            )
        free = {name: schema if name in strict else ANY_OBJECT for name, schema in schemas.items()}
        return Calls(self.dialect, free, _parallel(body), place="between")

    def _opened(self, prompt: Sequence[int], tokenizer: ModelTokenizer) -> bool:
        if not self.reasoning:
            return False
        tail = b"".join(map(tokenizer.token_bytes, prompt[-_TAIL:]))
        return tail.rstrip().endswith(OPEN.encode())


def check_tools(body: ChatCompletionRequest) -> None:
    """Raises a 400 `ApiError` where `tools` and `tool_choice` contradict each other."""
    names = [tool.function.name for tool in body.tools or ()]
    if len(set(names)) < len(names):
        raise bad_request("'tools' has two functions of the same name", "tools")
    choice = body.tool_choice
    if choice not in (None, "none", "auto") and not names:
        raise bad_request("'tool_choice' needs 'tools'", "tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise bad_request(f"'tool_choice' names '{choice.function.name}', which is not in 'tools'", "tool_choice")


def _offered(body: ChatCompletionRequest) -> list[Tool]:
    """The tools the model may call."""
    return [] if body.tool_choice == "none" else list(body.tools or ())


def _parallel(body: ChatCompletionRequest) -> bool:
    return body.parallel_tool_calls is not False


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
                "function": {"name": call.function.name, "arguments": call.function.parsed},
            }
            for call in message.tool_calls
        ]
    return fields
