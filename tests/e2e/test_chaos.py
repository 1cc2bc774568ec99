"""A stream survives what dies under it: not a token, a log-probability or a tool call differs (docs/reliability.md).

A few faults by default; `make chaos` draws as many as ECHELON_CHAOS says.
"""

import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.chaos import LINKED, PATIENCE, REQUESTS, ROLES, STAGES, Fault, answer, answers, survive
from tests.e2e.serving import Serving, serving
from tests.processes import children, wait_until

ROUNDS = int(os.environ.get("ECHELON_CHAOS", "0"))
RESTARTS = 4  # of one engine; the launcher gives up after a few more
OPTIONS = ("tiny", "--stages", str(STAGES), "--stall-timeout", "6")
GROWTH = 32 * 2**20  # bytes

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("chaos"), *OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(server: Serving) -> list[Any]:
    expected = answers(server)
    assert all(isinstance(seen, dict) and "usage" in seen for seen in expected), expected
    return expected


def held(server: Serving) -> dict[str, int]:
    """Descriptors and threads of the processes that live on."""
    processes = {"launcher": psutil.Process(server.launcher.pid), "server": psutil.Process(server.process("server"))}
    files = {f"{name} files": process.num_fds() for name, process in processes.items()}
    return files | {f"{name} threads": process.num_threads() for name, process in processes.items()}


@pytest.mark.parametrize(
    "fault",
    [
        Fault("noise", (), "decode"),
        Fault("slow", ("--stage", "0"), "decode"),
        Fault("reset", ("--stage", "1"), "decode"),
        Fault("stop", ("--stage", "2"), "decode"),
    ],
    ids=str,
)
def test_all_answers_are_what_they_would_have_been(server: Serving, undisturbed: list[Any], fault: Fault) -> None:
    before, processes = held(server), len(children(server.launcher.pid))
    survive(server, fault, undisturbed, random.Random(str(fault)))
    assert len(children(server.launcher.pid)) == processes
    after = held(server)
    assert {name: (before[name], after[name]) for name in before if after[name] > before[name] + 2} == {}


def test_an_api_server_that_is_killed_leaves_nothing_running(server: Serving, undisturbed: list[Any]) -> None:
    """Its clients lose their connections at once; rank 0 goes on, without their requests."""
    engine, api = server.process("speculation"), server.process("server")
    prompts = server.metric("echelon:prompt_tokens_total")
    prompts += sum(seen["usage"]["prompt_tokens"] for seen in undisturbed)
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        waiting = [pool.submit(answer, server, *request) for request in REQUESTS]
        wait_until(lambda: server.metric("echelon:prompt_tokens_total") >= prompts, PATIENCE)
        os.kill(api, signal.SIGKILL)
        for client in waiting:
            assert isinstance(client.exception(PATIENCE), httpx.TransportError)
    wait_until(lambda: server.health() == 200, PATIENCE)
    assert server.process("speculation") == engine
    wait_until(lambda: server.metric("echelon:num_requests_running") == 0, PATIENCE)
    assert server.metric("echelon:num_requests_waiting") == 0
    assert answers(server) == undisturbed


@pytest.mark.skipif(ROUNDS == 0, reason="make chaos")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("engine", range(-(-ROUNDS // RESTARTS)))
def test_many_faults_at_random_moments(tmp_path: Path, undisturbed: list[Any], engine: int) -> None:
    rng = random.Random(engine)
    with serving(tmp_path, *OPTIONS) as server:
        answers(server)
        api = psutil.Process(server.process("server"))
        before, memory = held(server), api.memory_info().rss
        for _ in range(RESTARTS):
            kind = rng.choice(["kill", "kill", "stop", "slow", "noise", "reset"])
            role = rng.choice(LINKED if kind == "reset" else ROLES)
            fault = Fault(kind, role, rng.choice(["prefill", "decode"]))  # type: ignore[arg-type]
            print(f"engine {engine}: {fault}", flush=True)
            survive(server, fault, undisturbed, rng)
        assert {name: count for name, count in held(server).items() if count > before[name] + 2} == {}
        assert api.memory_info().rss < memory + GROWTH
