"""Tools, structured output and reasoning, through the official client."""

import json
import time
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.e2e.stub_api import MODEL, REPLY, Api, ask, health

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in <|im_end|> a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "中 } \\"x\\" 🙂"}}\n</tool_call>'
ARGUMENTS = {"city": '中 } "x" 🙂'}


def prompt(api: Api) -> str:
    return api.tokenizer.decode(api.engine.generates[-1].prompt, skip_special_tokens=False)


def streamed(stream: Any) -> tuple[str | None, str, list[tuple[str, str, str]], str | None]:
    """Content, reasoning, calls and finish reason of a stream's chunks, added up as clients do."""
    content, reasoning, finish = None, "", None
    calls: list[list[str]] = []
    for chunk in stream:
        choice = chunk.choices[0]
        if choice.delta.content:
            content = (content or "") + choice.delta.content
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or []:
            if call.id is not None:
                assert (call.index, call.type) == (len(calls), "function")
                calls.append([call.id, call.function.name, ""])
            else:
                assert call.function.name is None
            calls[call.index][2] += call.function.arguments
        finish = choice.finish_reason or finish
    return content, reasoning, [(call[0], call[1], call[2]) for call in calls], finish


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_calls_streamed_and_whole(api: Api, batch: int) -> None:
    api.engine.batch = batch
    api.reply(f"Let me see. {CALL}\n{CALL}")
    fields = ask(tools=[WEATHER])
    message = api.client().chat.completions.create(**fields).choices[0]
    assert message.finish_reason == "tool_calls"
    assert message.message.content == "Let me see."
    calls = message.message.tool_calls
    assert calls is not None
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("get_weather", ARGUMENTS)
    ] * 2
    assert calls[0].id != calls[1].id
    content, _, parts, finish = streamed(api.client().chat.completions.create(**fields, stream=True))
    assert (content, finish) == ("Let me see.", "tool_calls")
    assert [(name, arguments) for _, name, arguments in parts] == [
        (call.function.name, call.function.arguments) for call in calls
    ]


def test_arguments_are_streamed_as_they_are_generated(api: Api) -> None:
    api.reply(CALL)
    stream = api.client().chat.completions.create(**ask(tools=[WEATHER]), stream=True)
    pieces = [chunk for chunk in stream if chunk.choices[0].delta.tool_calls]
    assert len(pieces) > 5


def test_a_message_with_nothing_but_calls_has_no_content(api: Api) -> None:
    api.reply(CALL)
    assert api.client().chat.completions.create(**ask(tools=[WEATHER])).choices[0].message.content is None


def test_tools_are_explained_to_a_model_that_does_not_know_them(api: Api) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "x"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
    ]
    api.client().chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])  # type: ignore[arg-type]
    text = prompt(api)
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions.")
    assert json.dumps(WEATHER["function"], ensure_ascii=False) in text
    block = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "x"}}\n</tool_call>'
    assert f"<|im_start|>assistant\n{block}\n{block}<|im_end|>" in text
    answers = "\n".join(f"<tool_response>\n{answer}\n</tool_response>" for answer in ("rain", "sun"))
    assert f"<|im_start|>user\n{answers}<|im_end|>" in text
    ends = api.engine.generates[-1].prompt.count(2)
    assert ends == 4, "the description of a tool must not make control tokens"


def test_a_template_that_knows_tools_gets_them(native: Api) -> None:
    native.reply("ok")
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "x"}'}}
    messages = [*ask()["messages"], {"role": "assistant", "tool_calls": [call]}]
    native.client().chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
    assert f"tools {json.dumps([WEATHER])} <tool_call>" in prompt(native)
    assert '<tool_call>{"name": "get_weather", "arguments": {"city": "x"}}</tool_call>' in prompt(native)


def test_tools_that_must_not_be_called(api: Api) -> None:
    api.reply(CALL)
    answer = api.client().chat.completions.create(**ask(tools=[WEATHER], tool_choice="none"))
    assert answer.choices[0].message.content == CALL
    assert answer.choices[0].finish_reason == "stop"
    assert "get_weather" not in prompt(api)


def test_one_call_at_a_time_ends_the_sequence(api: Api) -> None:
    api.reply(CALL + CALL, end=False)
    answer = api.client().chat.completions.create(**ask(tools=[WEATHER], parallel_tool_calls=False))
    assert answer.choices[0].finish_reason == "tool_calls"
    assert len(answer.choices[0].message.tool_calls or []) == 1
    api.engine.wait(lambda: api.engine.aborts == [api.engine.generates[0].id])


def test_a_call_that_is_cut_off_says_so(api: Api) -> None:
    api.reply(CALL)
    answer = api.client().chat.completions.create(**ask(tools=[WEATHER], max_tokens=60))
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls is not None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be_made_is_enforced_by_a_grammar(api: Api, choice: Any) -> None:
    api.reply(CALL)
    answer = api.client().chat.completions.create(**ask(tools=[WEATHER], tool_choice=choice))
    assert len(answer.choices[0].message.tool_calls or []) == 1
    assert "get_weather" in str(api.engine.generates[0].sampling.grammar)


class City(BaseModel):
    name: str
    size: Literal["small", "large"]


def test_the_client_parses_into_a_pydantic_model(api: Api) -> None:
    api.reply('{"name": "x 🙂", "size": "small"}')
    answer = api.client().chat.completions.parse(**ask(response_format=City))
    assert answer.choices[0].message.parsed == City(name="x 🙂", size="small")
    assert '"large"' in str(api.engine.generates[0].sampling.grammar)
    with api.client().chat.completions.stream(**ask(response_format=City)) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == City(name="x 🙂", size="small")


def test_the_client_parses_the_arguments_of_a_tool(api: Api) -> None:
    api.reply('<tool_call>\n{"name": "City", "arguments": {"name": "a", "size": "large"}}\n</tool_call>')
    answer = api.client().chat.completions.parse(**ask(tools=[openai.pydantic_function_tool(City)]))
    call = (answer.choices[0].message.tool_calls or [])[0]
    assert call.function.parsed_arguments == City(name="a", size="large")


def test_completions_may_be_restricted_too(api: Api) -> None:
    api.client().completions.create(model=MODEL, prompt="x", extra_body={"guided_choice": ["yes", "no"]})
    assert '"yes"' in json.loads(str(api.engine.generates[0].sampling.grammar))["grammars"][0]["lark_grammar"]


@pytest.mark.parametrize("batch", [1, 1000])
def test_reasoning_is_kept_apart(native: Api, batch: int) -> None:
    native.engine.batch = batch
    for text, thinking in ((f"<think>\nHm, 🙂.\n</think>\n\nYes. {CALL}", False), ("Hm, 🙂.\n</think>\n\nYes.", True)):
        native.reply(text)
        fields = ask(tools=[WEATHER], extra_body={"chat_template_kwargs": {"thinking": thinking}})
        whole: Any = native.client().chat.completions.create(**fields)
        message = whole.choices[0].message
        assert (message.reasoning_content, message.content) == ("Hm, 🙂.", "Yes.")
        assert bool(message.tool_calls) == (not thinking)
        usage = whole.usage
        assert usage.completion_tokens_details.reasoning_tokens in range(4, usage.completion_tokens - 4)
        content, reasoning, _, _ = streamed(native.client().chat.completions.create(**fields, stream=True))
        assert (reasoning, content) == ("Hm, 🙂.", "Yes.")


def test_an_answer_without_reasoning_is_just_an_answer(native: Api) -> None:
    native.reply(REPLY)
    message: Any = native.client().chat.completions.create(**ask()).choices[0].message
    assert message.content == REPLY
    assert not hasattr(message, "reasoning_content")


def test_a_schema_that_takes_long_to_compile_holds_nobody_up(api: Api) -> None:
    properties = {f"property_{i}": {"type": "string", "pattern": f"^(a{i}|b)*c{{3,90}}$"} for i in range(3000)}
    body = ask(guided_json={"type": "object", "properties": properties, "required": list(properties)})
    with httpx.Client(timeout=30) as client:
        started = time.monotonic()
        response = client.post(f"{api.url}/v1/chat/completions", json=body)
        assert response.status_code in (200, 400)
        assert time.monotonic() - started < 10
    assert health(api.url) == 200


def test_logprobs_go_with_calls(api: Api) -> None:
    api.reply(CALL)
    whole = api.client().chat.completions.create(**ask(tools=[WEATHER], logprobs=True)).choices[0]
    chunks = api.client().chat.completions.create(**ask(tools=[WEATHER], logprobs=True), stream=True)
    assert whole.logprobs is not None
    tokens = [
        item.token
        for chunk in chunks
        for item in (chunk.choices[0].logprobs or whole.logprobs).content or []
        if chunk.choices[0].logprobs
    ]
    assert tokens == [item.token for item in whole.logprobs.content or []]
