"""The Responses API, through the official client."""

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.e2e.stub_api import MODEL, REPLY, Api
from tests.e2e.test_api_tools import ARGUMENTS, CALL, prompt

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


def test_text(api: Api) -> None:
    response = api.client().responses.create(
        model=MODEL, input="hello", instructions="Be brief.", store=False, metadata={"a": "b"}
    )
    assert response.output_text == REPLY
    assert (response.status, response.object, response.metadata) == ("completed", "response", {"a": "b"})
    assert prompt(api) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert response.usage is not None
    assert response.usage.input_tokens == len(api.engine.generates[0].prompt)
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def checked(stream: Any) -> tuple[list[Any], Any]:
    """Events and final response; every delta must add up to the item that is done in the end."""
    events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    final = events[-1].response
    for index, item in enumerate(final.output):
        mine = [event for event in events if getattr(event, "output_index", None) == index]
        assert mine[0].type == "response.output_item.added"
        assert (mine[-1].type, mine[-1].item) == ("response.output_item.done", item)
        written = "".join(event.delta for event in mine if event.type.endswith(".delta"))
        assert written == (item.arguments if item.type == "function_call" else item.content[0].text)
        assert all(event.item_id == item.id for event in mine if hasattr(event, "item_id"))
    return events, final


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_a_stream_adds_up_to_the_response(native: Api, batch: int) -> None:
    native.engine.batch = batch
    native.reply(f"<think>\nHm, 🙂.</think>\n\nLet me see. {CALL}\n{CALL}")
    fields: Any = {"model": MODEL, "input": "hello", "tools": [WEATHER]}
    whole = native.client().responses.create(**fields)
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "function_call"]
    assert whole.output_text == "Let me see."
    calls = [item for item in whole.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("get_weather", ARGUMENTS)] * 2
    events, final = checked(native.client().responses.create(**fields, stream=True))
    assert events[-1].type == "response.completed"
    assert final.output_text == whole.output_text
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    assert final.usage == whole.usage


def test_the_stream_helper_of_the_client(api: Api) -> None:
    with api.client().responses.stream(model=MODEL, input="hello") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == stream.get_final_response().output_text == REPLY


def test_a_conversation_with_tools_comes_back(api: Api) -> None:
    client = api.client()
    api.reply(CALL)
    first = client.responses.create(model=MODEL, input="hello", tools=[WEATHER], tool_choice="required")
    assert "get_weather" in str(api.engine.generates[0].sampling.grammar)
    (call,) = first.output
    assert call.type == "function_call"
    api.reply(REPLY)
    history: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        *first.output,
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
        *client.responses.create(model=MODEL, input="x").output,
        {"role": "user", "content": "and now?"},
    ]
    answer = client.responses.create(model=MODEL, input=history, tools=[WEATHER])
    assert answer.output_text == REPLY
    text = prompt(api)
    for piece in ('{"name": "get_weather", "arguments": {"city": ', "<tool_response>\nrain\n", REPLY, "and now?"):
        assert piece in text


class City(BaseModel):
    name: str


def test_the_client_parses_into_a_pydantic_model(api: Api) -> None:
    api.reply('{"name": "x"}')
    parsed = api.client().responses.parse(model=MODEL, input="hello", text_format=City)
    assert parsed.output_parsed == City(name="x")
    assert '"name"' in str(api.engine.generates[0].sampling.grammar)


def test_what_was_cut_off_is_incomplete(api: Api) -> None:
    response = api.client().responses.create(model=MODEL, input="hello", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    events, final = checked(api.client().responses.create(model=MODEL, input="hello", max_output_tokens=3, stream=True))
    assert (events[-1].type, final.status) == ("response.incomplete", "incomplete")


def test_a_stream_that_breaks_says_so(api: Api) -> None:
    api.engine.fail_after = 2
    events = list(api.client().responses.create(model=MODEL, input="hello", stream=True))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert "stage 1 died" in events[-1].response.error.message  # type: ignore[union-attr]
    with pytest.raises(openai.InternalServerError, match="stage 1 died"):
        api.client().responses.create(model=MODEL, input="hello")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].message.content"),
        ({"input": [{"type": "unheard_of"}]}, "input[0]"),
        ({"input": [7]}, "input[0]"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "x"}}}}, "text"),
        ({"truncation": "auto"}, "truncation"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(api: Api, fields: dict[str, Any], param: str | None) -> None:
    response = api.post({"model": MODEL, "input": "hello"} | fields, "/v1/responses")
    assert response.status_code == 400, response.text
    if param is not None:
        assert response.json()["error"]["param"] == param
    assert not api.engine.generates
