"""Bodies of OpenAI's requests, strictly typed; what a type cannot say is checked in `server.preparation.sequences`.

Extra fields are spelled as in vLLM. Fields that cannot change the output are accepted and ignored; fields this server
does not support are declared, so that the refusal can name them (`server.protocol.unsupported`).
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from server.protocol.body import Body, JsonObject, Text, checked_text, text_of_parts
from server.protocol.structured_output import StructuredFields
from server.protocol.tools import AssistantCall, Tool, ToolChoice

_INT32 = 2**31 - 1
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Count = Annotated[int, Field(ge=0, le=_INT32)]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _prompts(value: object) -> list[str | list[int]]:
    """The four forms of `prompt` as one: a list of texts and lists of token ids."""
    if isinstance(value, str):
        return [checked_text(value)]
    if isinstance(value, list) and value:
        if all(_is_id(item) for item in value):
            return [value]
        if all(isinstance(item, str) for item in value):
            return [checked_text(item) for item in value]
        if all(isinstance(item, list) and item and all(map(_is_id, item)) for item in value):
            return value
    raise ValueError("must be a string, or a list, not empty, of strings, of token ids, or of lists of token ids")


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class StreamOptions(Body):
    """Of a streamed request."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # with `include_usage`: usage so far in every chunk
    include_obfuscation: bool | None = None  # ignored: nothing is obfuscated


class SamplingFields(StructuredFields):
    """What both generation endpoints share. Defaults are OpenAI's, not those of the model's generation_config."""

    model: Text
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=1024)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Annotated[list[StopString], Field(max_length=16), BeforeValidator(_listed)] | None = None

    top_k: Annotated[int, Field(ge=-1, le=_INT32)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10.0)] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[Count], Field(max_length=64)] | None = None
    return_token_ids: bool | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=_INT32)] | None = None  # those of lower numbers start first

    user: Any = None
    metadata: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class ChatMessage(Body):
    """One message. The last four fields are what clients send back of an answer; `refusal` and others must be empty."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Text | None, BeforeValidator(text_of_parts("text"))] = None
    name: Text | None = None
    tool_call_id: Text | None = None
    tool_calls: Annotated[list[AssistantCall], Field(max_length=128)] | None = None
    reasoning_content: Text | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _fields_go_with_the_role(self) -> "ChatMessage":
        if self.tool_calls and self.role != "assistant":
            raise ValueError("'tool_calls' belongs into messages of the assistant only")
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("'content' is missing")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("'tool_call_id' is missing: a tool's message must say which call it answers")
        return self


class ChatCompletionRequest(SamplingFields):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    chat_template: Text | None = None  # the name of one of the model's templates
    chat_template_kwargs: JsonObject | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    prediction: Any = None  # a hint for speed

    store: Any = None
    modalities: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None


class CompletionRequest(SamplingFields):
    """Body of POST /v1/completions. Control tokens written in `prompt` are parsed: the caller owns the whole text."""

    prompt: Annotated[list[str | list[int]], PlainValidator(_prompts)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None

    best_of: Any = None
    suffix: Any = None
