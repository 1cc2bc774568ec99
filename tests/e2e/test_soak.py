"""Hundreds of requests, many of them abandoned: nothing leaks, nothing is lost, nothing is changed.

A thousand of them in `make chaos`.
"""

import asyncio
import os
import random
from pathlib import Path

import httpx
import pytest

from tests.e2e.serving import Serving, serving
from tests.processes import children, resident_bytes, wait_until

REQUESTS = 1000 if "ECHELON_CHAOS" in os.environ else 300
CLIENTS = 6
GROWTH = 8 * 2**20  # bytes a process may grow by while it serves the last three quarters


async def load(server: Serving, numbers: range) -> int:
    """Sends a request for each number; a third of the clients leave early. Returns how many were answered whole."""
    answered = 0
    todo = iter(numbers)

    async def client(http: httpx.AsyncClient) -> None:
        nonlocal answered
        for number in todo:
            rng = random.Random(number)
            body = {
                "model": "tiny",
                "prompt": [rng.randrange(30, 500) for _ in range(rng.choice([1, 3, 40, 700]))],
                "max_tokens": rng.randint(1, 12),
                "temperature": rng.choice([0, 1]),
                "stream": rng.random() < 0.5,
                "seed": number,
                "ignore_eos": True,
            }
            patience = rng.choice([300.0, 300.0, rng.random() * 0.1])
            try:
                response = await http.post(f"{server.url}/v1/completions", json=body, timeout=patience)
            except httpx.TimeoutException:
                continue
            assert response.status_code == 200, response.text
            assert "error" not in response.text
            answered += 1

    async with httpx.AsyncClient() as http:
        await asyncio.gather(*(client(http) for _ in range(CLIENTS)))
    return answered


@pytest.mark.timeout(900)
def test_many_requests_with_random_aborts(tmp_path: Path) -> None:
    with serving(tmp_path, "tiny", "--stages", "3", "--max-model-len", "1024") as server:
        known = {"model": "tiny", "prompt": [40, 41, 42], "max_tokens": 30, "temperature": 0, "return_token_ids": True}

        def known_tokens() -> list[int]:
            response = httpx.post(f"{server.url}/v1/completions", json=known, timeout=300)
            tokens: list[int] = response.json()["choices"][0]["token_ids"]
            return tokens

        expected = known_tokens()
        pids = children(server.launcher.pid)
        assert asyncio.run(load(server, range(REQUESTS // 4))) > REQUESTS // 8
        before = {pid: resident_bytes(pid) for pid in pids}
        assert asyncio.run(load(server, range(REQUESTS // 4, REQUESTS))) > REQUESTS * 3 // 8
        after = {pid: resident_bytes(pid) for pid in pids}

        assert children(server.launcher.pid) == pids, "a process was lost"
        assert {pid: after[pid] - before[pid] for pid in pids if after[pid] - before[pid] > GROWTH} == {}
        wait_until(lambda: server.metric("echelon:num_requests_running") == 0, 60)
        assert server.metric("echelon:num_requests_waiting") == 0
        assert known_tokens() == expected
