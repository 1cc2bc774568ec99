"""Spans: one a request with the caller's trace, a child a phase, also where the request fails."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from server.app import create_app
from server.service import Service
from server.settings import ServerSettings
from server.tracing.otel import OtelSpans
from server.tracing.spans import ChoiceTimes, latencies, phases
from tests.small_model import write_model_folder
from tests.stub_engine import StubEngine
from workers.shared.fingerprint import server_fingerprint
from workers.shared.messages import Beginning

export = pytest.importorskip(
    "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="the extra otel is absent"
)

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[StubEngine]:
    stub = StubEngine(f"ipc://{tmp_path}/bus", lambda request: [7, 8, 9])
    stub.start()
    yield stub
    stub.stop()


@pytest.fixture
def served(engine: StubEngine, tmp_path: Path) -> Iterator[tuple[TestClient, OtelSpans, Any]]:
    (tmp_path / "model").mkdir()
    folder = write_model_folder(tmp_path / "model")
    engine.fingerprint = server_fingerprint(folder)
    service = Service.load(ServerSettings(str(folder), "small", engine.endpoint))
    memory = export.InMemorySpanExporter()
    spans = OtelSpans("echelon", service.clock, lambda: memory)
    with TestClient(create_app(replace(service, spans=spans))) as client:
        while client.get("/health").status_code != 200:
            pass
        yield client, spans, memory


def finished(spans: OtelSpans, memory: Any) -> list[Any]:
    spans._provider.force_flush()
    return list(memory.get_finished_spans())


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_of_the_callers_trace(served: tuple[TestClient, OtelSpans, Any], stream: bool) -> None:
    client, spans, memory = served
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "X-Request-Id": "mine"}
    body = {"model": "small", "prompt": "a b", "max_tokens": 3, "temperature": 0, "stream": stream}
    assert client.post("/v1/completions", json=body, headers=headers).headers["x-request-id"] == "mine"
    *children, whole = finished(spans, memory)
    assert whole.name == "llm_request"
    assert whole.kind.name == "SERVER"
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert f"{whole.parent.span_id:016x}" == CALLER
    told = whole.attributes
    assert told["echelon.request_id"] == "mine"
    assert (told["gen_ai.usage.completion_tokens"], told["gen_ai.request.max_tokens"], told["gen_ai.request.n"]) == (
        3,
        3,
        1,
    )
    assert told["gen_ai.request.id"].startswith("cmpl-")
    assert list(told["gen_ai.response.finish_reasons"]) == ["length"]
    assert told["echelon.speculation.cycles"] == 3
    assert 0 <= told["gen_ai.latency.time_to_first_token"] <= told["gen_ai.latency.e2e"]
    assert {child.parent.span_id for child in children} == {whole.context.span_id}
    assert "llm_request.decode" in {child.name for child in children}
    for child in children:
        assert child.start_time <= child.end_time <= whole.end_time + 1000, "clocks are told apart to a microsecond"


def test_a_request_that_fails_says_why_and_one_without_a_trace_begins_one(
    served: tuple[TestClient, OtelSpans, Any], engine: StubEngine
) -> None:
    client, spans, memory = served
    engine.fail_after = 1
    response = client.post("/v1/completions", json={"model": "small", "prompt": "a", "max_tokens": 3})
    assert response.status_code == 500
    whole = finished(spans, memory)[-1]
    assert whole.parent is None
    assert whole.status.status_code.name == "ERROR"
    assert "stage 1 died" in whole.status.description
    assert whole.attributes["echelon.request_id"] == response.headers["x-request-id"]


Moments = st.floats(0, 1000)


@given(st.lists(st.tuples(Moments, Moments, st.integers(0, 10**12), st.integers(0, 10**12)), max_size=5))
def test_phases_follow_each_other_and_add_up(choices: list[tuple[float, float, int, int]]) -> None:
    times = [
        ChoiceTimes(first, first + length, Beginning(0, 0, queue, prefill)) for first, length, queue, prefill in choices
    ]
    found = phases(times)
    assert [phase.name for phase in found] == (["queue", "prefill", "decode"] if choices else [])
    if choices:
        queue, prefill, decode = found
        assert queue.start <= prefill.start <= decode.start
        assert queue.end <= prefill.end <= decode.end
    if len(choices) == 1:
        first, length, queue_ns, prefill_ns = choices[0]
        told = latencies(0.0, first + length, found)
        assert told["gen_ai.latency.time_in_queue"] == pytest.approx(queue_ns / 1e9, abs=1e-6)
        assert told["gen_ai.latency.time_in_model_prefill"] == pytest.approx(prefill_ns / 1e9, abs=1e-6)
        assert told["gen_ai.latency.time_in_model_decode"] == pytest.approx(length, abs=1e-6)
        assert told["gen_ai.latency.time_to_first_token"] == first
    assert "gen_ai.latency.e2e" in latencies(0.0, 1.0, found)
