"""What a chat request means for the model's template: which template, and what it is given."""

from typing import Any

import pytest

from server.errors import ApiError
from server.preparation.chat_model import ChatModel, ChatModels
from server.preparation.intent import ChatIntent
from server.preparation.responses_api import as_chat
from server.preparation.template import ChatTemplate
from server.protocol.requests import ChatCompletionRequest
from server.protocol.responses_request import ResponsesRequest
from server.tokenizer import ModelTokenizer
from tests.small_model import write_model_folder

TOOL = {"type": "function", "function": {"name": "f"}}
SOURCES = {"default": "d", "tool_use": "t {{ tools }} <tool_call>", "rag": "r"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ChatModels:
    tokenizer = ModelTokenizer(write_model_folder(tmp_path_factory.mktemp("model")))
    return ChatModels({name: ChatModel.of(ChatTemplate(text, {}), tokenizer, None) for name, text in SOURCES.items()})


def intent(models: ChatModels, messages: list[dict[str, Any]] | None = None, **fields: Any) -> ChatIntent:
    messages = messages or [{"role": "user", "content": "x"}]
    return ChatIntent.of(ChatCompletionRequest.model_validate({"model": "m", "messages": messages} | fields), models)


@pytest.mark.parametrize(
    ("fields", "native"),
    [
        ({}, False),
        ({"tools": [TOOL]}, True),
        ({"tools": [TOOL], "tool_choice": "none"}, False),
        ({"tools": [TOOL], "chat_template": "default"}, False),
        ({"chat_template": "tool_use"}, True),
    ],
)
def test_the_template_goes_by_its_name_or_by_the_tools(
    models: ChatModels, fields: dict[str, Any], native: bool
) -> None:
    made = intent(models, **fields)
    assert made.model.native_tools == native
    assert ("tools" in made.variables) == native
    assert (made.messages[0]["role"] == "system") == (not native and made.reads_calls)


def test_a_template_that_is_not_there_is_refused_by_name(models: ChatModels) -> None:
    for chosen, given, param in (
        (models, "{{ messages }}", "chat_template"),
        (ChatModels({"rag": models.choose("rag", tools=False)}), None, "chat_template"),
        (ChatModels({}), None, "messages"),
    ):
        with pytest.raises(ApiError) as caught:
            intent(chosen, chat_template=given)
        assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    "arguments", ['{"value": ', "[1]", '"Paris"', "null", "no JSON", "[" * 5000, '{"a":' * 70], ids=range(7)
)
def test_arguments_that_are_no_object_are_shown_as_text(models: ChatModels, arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    history: list[dict[str, Any]] = [{"role": "assistant", "tool_calls": [call]}]
    (message,) = intent(models, history, chat_template="tool_use").messages
    assert message["tool_calls"][0]["function"]["arguments"] == arguments
    items = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}]
    asked = as_chat(ResponsesRequest.model_validate({"model": "m", "input": items}))
    (call_again,) = asked.messages[0].tool_calls or []
    assert call_again.function.shown == arguments


def test_what_opens_the_conversation_is_one_system_message(models: ChatModels) -> None:
    opening: list[dict[str, Any]] = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
    ]
    rest: list[dict[str, Any]] = [{"role": "user", "content": "x"}, {"role": "system", "content": "later"}]
    expected = [{"role": "system", "content": "a\n\nb\nc"}, *rest]
    assert intent(models, [*opening, *rest]).messages == expected
    items = [{"role": "developer", "content": "b\nc"}, *rest]
    body = ResponsesRequest.model_validate({"model": "m", "instructions": "a", "input": items})
    assert ChatIntent.of(as_chat(body), models).messages == expected


def test_other_messages_stay_as_they_are(models: ChatModels) -> None:
    messages = [{"role": "system", "content": "a", "name": "n"}, {"role": "user", "content": "x"}]
    assert intent(models, messages).messages == messages
