"""Body of POST /v1/responses."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from server.protocol.body import Body, JsonObject, Text, text_of_parts
from server.protocol.tools import FunctionName

Content = Annotated[Text, BeforeValidator(text_of_parts("input_text", "output_text", "reasoning_text"))]


class Item(Body):
    """What every item may carry; it means nothing to a server that stores nothing."""

    id: Any = None
    status: Any = None


class Message(Item):
    """A message, new or from an earlier answer."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    phase: Any = None


class FunctionCall(Item):
    """A call from an earlier answer."""

    type: Literal["function_call"]
    call_id: Text
    name: Text
    arguments: Text
    namespace: None = None
    parsed_arguments: Any = None  # the official client adds it to what it parsed


class FunctionCallOutput(Item):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: Text
    output: Content


class EarlierReasoning(Item):
    """Reasoning from an earlier answer, for the chat templates that show it to the model."""

    type: Literal["reasoning"]
    summary: list[Any] | None = None
    content: Content | None = None
    encrypted_content: None = None


_KINDS = ("message", "function_call", "function_call_output", "reasoning")


def _kind(value: object) -> str:
    kind = value.get("type", "message") if isinstance(value, Mapping) else getattr(value, "type", "message")
    return kind if isinstance(kind, str) else ""


def _known_item(value: object) -> object:
    if isinstance(value, Mapping) and _kind(value) == "item_reference":
        raise ValueError(
            "an item_reference cannot be resolved, for this server stores nothing: send the item itself, or have your "
            "client do so with 'store' false"
        )
    if not isinstance(value, Mapping) or _kind(value) not in _KINDS:
        raise ValueError(f"must be an object with one of the types {', '.join(_KINDS)}")
    return value


AnyItem = Annotated[
    Annotated[
        Annotated[Message, Tag("message")]
        | Annotated[FunctionCall, Tag("function_call")]
        | Annotated[FunctionCallOutput, Tag("function_call_output")]
        | Annotated[EarlierReasoning, Tag("reasoning")],
        Discriminator(_kind),
    ],
    BeforeValidator(_known_item),
]


def _items(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class FunctionTool(Body):
    """A function the model may call."""

    type: Literal["function"]
    name: FunctionName
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ChosenTool(Body):
    """This function must be called."""

    type: Literal["function"]
    name: Text


class TextFormat(Body):
    """`text.format`; a schema is enforced whether `strict` is true or not."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: Text | None = None
    json_schema: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_goes_with_its_type(self) -> "TextFormat":
        if (self.type == "json_schema") != (self.json_schema is not None and self.name is not None):
            raise ValueError("'name' and 'schema' must be given with type json_schema, and with no other")
        return self


class TextSettings(Body):
    """`text`."""

    format: TextFormat | None = None
    verbosity: None = None


class ReasoningSettings(Body):
    """`reasoning`; there is no effort to choose here, and no summary is made."""

    effort: None = None
    summary: Any = None
    generate_summary: Any = None


class StreamSettings(Body):
    """`stream_options`."""

    include_obfuscation: bool | None = None  # ignored: nothing is obfuscated


class ResponsesRequest(Body):
    """What cannot change the answer is accepted and ignored; what this server cannot do must be absent or neutral."""

    model: Text
    input: Annotated[list[AnyItem], Field(min_length=1), BeforeValidator(_items)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    stream: bool | None = None
    stream_options: StreamSettings | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None

    store: Literal[False] | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    include: Annotated[list[Literal["reasoning.encrypted_content"]], Field(max_length=1)] | None = None  # there is none
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    max_tool_calls: None = None
    context_management: None = None

    metadata: JsonObject | None = None
    user: Text | None = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
