"""What the API refuses, and in which words."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.stub_api import MAX_QUEUE, MODEL, Api, ask
from tests.stub_engine import INFO


def test_context_length(api: Api) -> None:
    client = api.client()
    limit = INFO.max_model_len
    answer = client.completions.create(model=MODEL, prompt=[7] * (limit - 1))
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[7] * limit)
    assert caught.value.code == "context_length_exceeded"
    assert f"maximum context length is {limit} tokens" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[7] * 10, max_tokens=limit - 9)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_tokens")


BAD = [
    ({"temperature": True}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": 0, "stream": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"top_k": 10**20}, "top_k"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 1e9}, "repetition_penalty"),
    ({"logit_bias": {"400": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"stop": ""}, "stop[0]"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop_token_ids": [400]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"what": True}}, "stream_options.what"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    ({"response_format": {"type": "json_object"}, "min_tokens": 3}, "min_tokens"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a+"}, "guided_regex"),
    ({"guided_json": {"type": "banana"}}, "guided_json"),
    ({"guided_json": "no json"}, "guided_json"),
    ({"guided_json": {"not": {"type": "string"}}}, "guided_json"),
    ({"guided_regex": "(a"}, "guided_regex"),
    ({"guided_grammar": "start: nothing"}, "guided_grammar"),
    ({"guided_choice": []}, "guided_choice"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"),
    ({"unheard_of": 1}, "unheard_of"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "pirate", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ({"model": None}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_bad_fields_are_refused_by_name(api: Api, fields: dict[str, Any], param: str) -> None:
    response = api.post(ask() | fields)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}
    assert param.split("[")[0].split(".")[0] in error["message"]
    assert not api.engine.generates


def raw(api: Api, content: bytes, content_type: str = "application/json") -> httpx.Response:
    headers = {"Content-Type": content_type}
    return httpx.post(f"{api.url}/v1/chat/completions", content=content, headers=headers, timeout=120)


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"{}", "text/plain", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (json.dumps(ask(temperature=float("nan"))).encode(), "application/json", 400),
        (json.dumps(ask(top_p=float("inf"))).encode(), "application/json", 400),
        (json.dumps(ask("\ud800")).encode(), "application/json", 400),
        (json.dumps(ask(stop="\ud800")).encode(), "application/json", 400),
        (json.dumps(ask(chat_template_kwargs={"a": ["\ud800"]})).encode(), "application/json", 400),
        (json.dumps(ask(model="\ud800")).encode(), "application/json", 400),
        (json.dumps(ask() | {"\ud800": 1}).encode(), "application/json", 400),
        (b" " * (8 * 1024 * 1024 + 1), "application/json", 413),
    ],
)
def test_bodies_that_are_no_request(api: Api, content: bytes, content_type: str, status: int) -> None:
    response = raw(api, content, content_type)
    assert response.status_code == status, response.text
    if status != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_chunked_body_is_limited_too(api: Api) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(9):
            yield b" " * 1024 * 1024

    response = httpx.post(f"{api.url}/v1/chat/completions", content=chunks(), timeout=120)
    assert response.status_code == 413


def test_wrong_places_have_the_error_shape(api: Api) -> None:
    for response, status in [
        (httpx.get(f"{api.url}/nowhere"), 404),
        (httpx.get(f"{api.url}/v1/chat/completions"), 405),
        (api.post(ask() | {"model": "other"}), 404),
    ]:
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert api.post(ask() | {"model": "other"}).json()["error"]["code"] == "model_not_found"


def test_more_choices_than_the_queue_could_ever_hold_are_a_bad_request(api: Api) -> None:
    response = api.post(ask(n=2 + MAX_QUEUE))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
