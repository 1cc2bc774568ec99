"""Who may come in, and how often: the middleware alone, around an application that answers everything."""

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from server.middleware.api_keys import ApiKeys
from server.middleware.limits import Allowances, RateLimit

PROBE, PAGE, FIGURES, TRACE, API = "/ready", "/dashboard", "/metrics", "/dashboard/events", "/v1/models"
USERS, OPERATORS = ("user",), ("operator",)


def status(keys: Sequence[str], operator_keys: Sequence[str], path: str, key: str | None) -> int:
    app: ASGIApp = ApiKeys(PlainTextResponse("open"), keys, operator_keys)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return TestClient(app).get(path, headers=headers).status_code


@pytest.mark.parametrize(
    ("keys", "operator_keys", "path", "opened_by"),
    [
        (USERS, (), PROBE, {None, "user", "operator", ""}),
        (USERS, (), PAGE, {None, "user", "operator", ""}),
        (USERS, (), FIGURES, {None, "user", "operator", ""}),
        (USERS, (), TRACE, {"user"}),
        (USERS, (), API, {"user"}),
        (USERS, OPERATORS, PROBE, {None, "user", "operator", ""}),
        (USERS, OPERATORS, PAGE, {None, "user", "operator", ""}),
        (USERS, OPERATORS, FIGURES, {"operator"}),
        (USERS, OPERATORS, TRACE, {"operator"}),
        (USERS, OPERATORS, API, {"user", "operator"}),
        ((), OPERATORS, FIGURES, {"operator"}),
        ((), OPERATORS, TRACE, {"operator"}),
        ((), OPERATORS, API, {None, "user", "operator", ""}),
    ],
)
def test_what_each_key_opens(
    keys: Sequence[str], operator_keys: Sequence[str], path: str, opened_by: set[str | None]
) -> None:
    assert {key for key in (None, "user", "operator", "") if status(keys, operator_keys, path, key) == 200} == opened_by


@given(st.integers(1, 5), st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 20)), max_size=60))
def test_no_caller_gets_more_than_its_share_of_any_minute(limit: int, asked: list[tuple[bytes, int]]) -> None:
    allowances, now = Allowances(limit), 0.0
    passed: dict[bytes, deque[float]] = {b"a": deque(), b"b": deque()}
    for caller, pause in asked:
        now += pause
        verdict = allowances.ask(caller, now)
        recent = [moment for moment in passed[caller] if moment > now - 60]
        if verdict.allowed:
            passed[caller].append(now)
            assert len(recent) < 2 * limit, "what was saved up, and what a minute gives"
        else:
            assert len(recent) >= 1
            assert 0 < verdict.wait <= 60 / limit
            later = Allowances(limit)
            later._left.update(allowances._left)
            assert later.ask(caller, now + verdict.wait + 1e-6).allowed, "who waits as told may pass"


def test_a_minute_in_pieces_is_a_minute() -> None:
    allowances = Allowances(1)
    allowed = [allowances.ask(b"a", moment).allowed for moment in (0.0, 3.0, 23.0, 43.0, 60.0)]
    assert allowed == [True, False, False, False, True]


def test_callers_that_are_forgotten_are_those_of_long_ago() -> None:
    allowances = Allowances(1, callers=2)
    for caller in (b"a", b"b", b"a", b"c"):
        allowances.ask(caller, 0.0)
    assert not allowances.ask(b"a", 0.0).allowed
    assert allowances.ask(b"b", 0.0).allowed


def test_the_limit_is_told_as_openai_tells_it() -> None:
    moments = iter([0.0, 0.0, 0.0, 30.0])
    client = TestClient(RateLimit(PlainTextResponse("fine"), 2, lambda: next(moments)))
    first, second = client.post("/v1/x"), client.post("/v1/x", headers={"Authorization": "Bearer other"})
    for response in (first, second):
        assert response.status_code == 200
        assert response.headers["x-ratelimit-limit-requests"] == "2"
        assert response.headers["x-ratelimit-remaining-requests"] == "1"
    assert client.get("/v1/x").headers.get("x-ratelimit-limit-requests") is None
    assert client.post("/v1/x").status_code == 200
    assert client.post("/v1/x").status_code == 200, "half a minute later"
    allowances = Allowances(1)
    allowances.ask(b"x", 0.0)
    refused = TestClient(RateLimit(PlainTextResponse("fine"), 1, lambda: 0.0))
    assert refused.post("/v1/x").status_code == 200
    response = refused.post("/v1/x")
    assert (response.status_code, response.headers["retry-after"]) == (429, "60")
    assert response.json()["error"]["code"] == "rate_limit_exceeded"
