"""What a response repeats of its request can be written: half of a surrogate pair is refused wherever it stands."""

import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
from pydantic import ValidationError

from server.formatters.base import Envelope
from server.formatters.responses import ResponsesFormat
from server.middleware.error_handlers import explain
from server.preparation.responses_api import as_chat
from server.preparation.sequences import Limits, prepared_chat
from server.protocol.completion_objects import Usage
from server.protocol.responses_request import ResponsesRequest
from server.tokenizer import ModelTokenizer

HALF_A_PAIR = "\ud83d"
SCHEMA = {"type": "object", "description": "d", "properties": {"a": {"enum": ["x"]}}}
BODY: dict[str, Any] = {
    "model": "m",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
    "instructions": "i",
    "metadata": {"a": "b"},
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "n", "description": "d", "schema": SCHEMA}},
    "user": "u",
    "service_tier": "auto",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where strings stand in `value`, the names of fields among them."""
    if isinstance(value, str):
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(key, str):
            yield (*path, key, None)
        yield from places(item, (*path, key))


def spoilt(path: tuple[Any, ...]) -> Any:
    body: Any = json.loads(json.dumps(BODY))
    target = body
    *steps, last = path[:-1] if path[-1] is None else path
    for step in steps:
        target = target[step]
    if path[-1] is None:
        target[HALF_A_PAIR] = target.pop(last)
    else:
        target[last] = HALF_A_PAIR
    return body


def written(body: ResponsesRequest) -> bytes:
    request = prepared_chat(as_chat(body), "id", [1], Limits(100, 100, frozenset({2})), lambda: 0)
    form = ResponsesFormat(Envelope(request, body.model, cast(ModelTokenizer, None), rehearsal=False), body)
    return msgspec.json.encode([*form.opening(None), *form.ending(Usage(1, 1, 2))])


def test_the_whole_body_is_written() -> None:
    assert b'"a":"b"' in written(ResponsesRequest.model_validate(BODY))


@pytest.mark.parametrize("path", [pytest.param(path, id=".".join(map(str, path))) for path in places(BODY)])
def test_no_field_that_is_repeated_holds_what_cannot_be_written(path: tuple[Any, ...]) -> None:
    try:
        body = ResponsesRequest.model_validate(spoilt(path))
    except ValidationError as error:
        told = explain([{**found, "loc": ("body", *found["loc"])} for found in error.errors()])
        assert (told.param or "").startswith(str(path[0])) or path[-1] is None
        msgspec.json.encode(told.body)
        return
    written(body)
