"""From request bodies to sequences: whatever passes the checks is safe to send to the engine."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from server.errors import ApiError
from server.preparation.sequences import Limits, PreparedRequest, prepared_chat, prepared_completion
from server.protocol.requests import ChatCompletionRequest, CompletionRequest
from server.protocol.unsupported import refuse_unsupported
from workers.shared.bus import encode
from workers.shared.messages import Generate, Sampling, ToEngine

LIMITS = Limits(max_model_len=32, vocab_size=100, eos_ids=frozenset({2, 3}))
MESSAGES = [{"role": "user", "content": "x"}]


def chat(prompt: int = 4, **fields: Any) -> PreparedRequest:
    body = ChatCompletionRequest.model_validate({"model": "m", "messages": MESSAGES} | fields)
    refuse_unsupported(body)
    return prepared_chat(body, "id", [5] * prompt, LIMITS, lambda: 77)


def sampling(**fields: Any) -> Sampling:
    return chat(**fields).generates[0].sampling


NUMBER_FIELDS = (
    "temperature",
    "top_p",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "logprobs",
    "top_logprobs",
    "stream",
)
numbers = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(),
    st.floats(),
    st.sampled_from([0.5, 1e-9, 1e9, "1", [], {}]),
)
keys = st.one_of(st.integers(-5, 150).map(str), st.sampled_from(["", "x", "٣", "1" * 5000, "1.0", " 1", "\ud800"]))
bodies = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(NUMBER_FIELDS, numbers)
    | {
        "logit_bias": st.dictionaries(keys, numbers, max_size=3),
        "stop_token_ids": st.lists(numbers, max_size=3),
        "stop": st.one_of(st.text(), st.lists(st.text(), max_size=3), numbers),
    },
)


@given(bodies)
def test_whatever_passes_is_safe_for_the_engine(fields: dict[str, Any]) -> None:
    try:
        request = chat(**fields)
    except (ValidationError, ApiError):
        return
    assert 1 <= len(request.generates) <= 16
    for generate in request.generates:
        assert msgspec.msgpack.decode(encode(generate), type=ToEngine) == generate
        assert 1 <= generate.max_tokens <= LIMITS.max_model_len - len(generate.prompt)
        params = generate.sampling
        assert params.min_tokens <= generate.max_tokens
        assert 0 <= params.seed < 2**64
        assert params.temperature == 0.0 or 1e-5 <= params.temperature <= 2.0
        assert 0.0 < params.top_p <= 1.0
        assert 0 <= params.top_k < LIMITS.vocab_size
        assert 0.01 <= params.repetition_penalty <= 10.0
        assert all(0 <= token < LIMITS.vocab_size and -100 <= bias <= 100 for token, bias in params.logit_bias.items())
        assert all(0 <= token < LIMITS.vocab_size for token in generate.stop_tokens)


def test_defaults_are_openais() -> None:
    request = chat()
    expected = Generate("id-0", [5] * 4, 28, Sampling(seed=77, end_tokens=(2, 3)), (2, 3))
    assert request.generates == [expected]


@pytest.mark.parametrize("size", [31, 32, 33])
def test_a_prompt_needs_room_for_one_token(size: int) -> None:
    if size == 31:
        assert chat(prompt=size).generates[0].max_tokens == 1
        return
    with pytest.raises(ApiError, match=f"maximum context length is 32 tokens.*{size} tokens") as caught:
        chat(prompt=size)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "context_length_exceeded", "messages")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_limit_of_tokens(name: str) -> None:
    assert chat(**{name: 28}).generates[0].max_tokens == 28
    with pytest.raises(ApiError, match="you requested 33 tokens") as caught:
        chat(**{name: 29})
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", name)


def test_both_names_of_the_limit() -> None:
    assert chat(max_tokens=3, max_completion_tokens=3).generates[0].max_tokens == 3
    with pytest.raises(ApiError, match="differ"):
        chat(max_tokens=3, max_completion_tokens=4)


def test_seeds_wrap_and_count_up() -> None:
    seeds = [generate.sampling.seed for generate in chat(seed=-1, n=3).generates]
    assert seeds == [2**64 - 1, 0, 1]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 1e-6}, {"temperature": 0.0}),
        ({"top_p": 0}, {"top_p": 1.0, "top_k": 1}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 100}, {"top_k": 0}),
        ({"ignore_eos": True}, {"end_tokens": ()}),
        ({"ignore_eos": True, "stop_token_ids": [9, 9]}, {"end_tokens": (9,)}),
        ({"stop_token_ids": [9]}, {"end_tokens": (2, 3, 9)}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": 20}),
        ({"logprobs": False}, {"logprobs": None}),
    ],
)
def test_sampling_translates(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    result = sampling(**fields)
    assert {name: getattr(result, name) for name in expected} == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": True},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]},
        {"tools": None, "response_format": None, "n": None, "stop": None, "logit_bias": None},
    ],
)
def test_what_changes_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert chat(**fields).generates == chat().generates


@pytest.mark.parametrize("name", ["suffix", "best_of"])
def test_unsupported_completion_fields(name: str) -> None:
    body = CompletionRequest.model_validate({"model": "m", "prompt": "x", name: 2})
    with pytest.raises(ApiError) as caught:
        refuse_unsupported(body)
    assert (caught.value.status, caught.value.param) == (400, name)


def test_completions_plan_n_choices_a_prompt() -> None:
    body = CompletionRequest.model_validate({"model": "m", "prompt": [[5, 6], [7]], "n": 2, "seed": 1})
    assert body.prompt == [[5, 6], [7]]
    request = prepared_completion(body, "id", [[5, 6], [7]], LIMITS, lambda: 0)
    assert [generate.prompt for generate in request.generates] == [[5, 6], [5, 6], [7], [7]]
    assert [generate.max_tokens for generate in request.generates] == [16] * 4
    assert (request.prompts, request.prompt_tokens) == ([[5, 6], [7]], 3)


@pytest.mark.parametrize("prompt", [[], [[]], [True], [1.0], ["a", 1], {"a": 1}, None, 3, [["a"]], ["\ud800"]])
def test_prompts_of_no_known_form(prompt: Any) -> None:
    with pytest.raises(ValidationError):
        CompletionRequest.model_validate({"model": "m", "prompt": prompt})


@pytest.mark.parametrize("prompt", [[], [100], [-1]])
def test_prompt_tokens_outside_the_vocabulary(prompt: list[int]) -> None:
    body = CompletionRequest.model_validate({"model": "m", "prompt": "x"})
    with pytest.raises(ApiError) as caught:
        prepared_completion(body, "id", [prompt], LIMITS, lambda: 0)
    assert caught.value.param == "prompt"


def test_priority_reaches_every_choice_where_the_server_goes_by_it() -> None:
    body = ChatCompletionRequest.model_validate({"model": "m", "messages": MESSAGES, "n": 2, "priority": -5})
    limits = replace(LIMITS, by_priority=True)
    assert [made.priority for made in prepared_chat(body, "id", [5], limits, lambda: 77).generates] == [-5, -5]
