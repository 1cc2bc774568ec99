"""Structured output and tools from a real model in real processes: random weights, and still exactly what was asked."""

from collections.abc import Iterator
from typing import Any, Literal

import httpx
import pytest
from pydantic import BaseModel, ConfigDict

from tests.e2e.serving import Serving, serving

pytestmark = pytest.mark.timeout(900)


class Report(BaseModel):
    model_config = ConfigDict(extra="forbid")

    weather_in_the_evening: Literal["rain", "sun"]
    is_there_a_bridge: bool
    number_of_houses: Literal[3, 12, 144]


TOOL: Any = {
    "type": "function",
    "function": {"name": "write_report", "parameters": Report.model_json_schema(), "strict": True},
}
ASK: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "seed": 3}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """That drafters change nothing of such answers is shown in one process (tests/model/test_grammar_pipeline.py)."""
    folder = tmp_path_factory.mktemp("structured")
    one_process = ("--transport", "inprocess")  # starts in a fraction of the time of four
    with serving(folder, "tiny", "--stages", "4", *one_process, "--drafter", "ngram") as running:
        yield running


def test_a_schema_is_kept_and_forced_tokens_fill_the_pipeline(server: Serving) -> None:
    answer = server.client().chat.completions.parse(**ASK, response_format=Report)
    assert isinstance(answer.choices[0].message.parsed, Report)


def test_a_required_tool_is_called(server: Serving) -> None:
    answer = server.client().chat.completions.create(**ASK, tools=[TOOL], tool_choice="required", max_tokens=800)
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls or []
    for call in calls:
        Report.model_validate_json(call.function.arguments)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"guided_choice": ["left", "right"]}, ("left", "right")),
        ({"guided_regex": "[ab]{3}"}, tuple(a + b + c for a in "ab" for b in "ab" for c in "ab")),
        ({"guided_grammar": 'start: "x" | "yy"'}, ("x", "yy")),
    ],
)
def test_other_grammars(server: Serving, fields: dict[str, Any], expected: tuple[str, ...]) -> None:
    response = httpx.post(f"{server.url}/v1/chat/completions", json=ASK | fields, timeout=300)
    assert response.json()["choices"][0]["message"]["content"] in expected
