"""The bus client against a stub engine on a real socket, and its pure parts alone."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.client import EngineClient, EngineFailed, EngineUnavailable, QueueFull, Submission
from server.engine.health import EngineHealth
from server.engine.rates import EngineFigures
from tests.stub_engine import CHOICE, INFO, StubEngine
from workers.shared.messages import EngineStats, Generate, Sampling, StageTimings, Status

pytestmark = pytest.mark.timeout(30)


def generate(name: str, max_tokens: int = 8) -> Generate:
    return Generate(name, [1], max_tokens, Sampling(seed=0))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[StubEngine]:
    stub = StubEngine(f"ipc://{tmp_path}/bus", lambda request: [7, 8, 9])
    stub.start()
    yield stub
    await asyncio.to_thread(stub.stop)


@pytest.fixture
async def client(engine: StubEngine) -> AsyncIterator[EngineClient]:
    client = EngineClient(engine.endpoint, max_queue=1, health_timeout=0.5, clock=time.monotonic, probe_interval=0.05)
    await client.start()
    await until(lambda: client.healthy)
    yield client
    await client.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def tokens(submission: Submission) -> list[int]:
    received: list[int] = []
    while True:
        message = await submission.get()
        received += message.tokens
        if message.finish is not None:
            return received


async def test_tokens_arrive_in_order_and_the_slot_is_free_again(engine: StubEngine, client: EngineClient) -> None:
    assert await tokens(client.submit([generate("a")])) == [7, 8, 9]
    assert client.open_sequences == 0


async def test_no_more_than_the_capacity_is_open_and_all_or_nothing(engine: StubEngine, client: EngineClient) -> None:
    engine.pause_after = 0
    submission = client.submit([generate("a")])
    with pytest.raises(QueueFull):
        client.submit([generate("b"), generate("c")])
    assert client.open_sequences == 1
    submission.close()
    submission.close()
    await asyncio.to_thread(engine.wait, lambda: engine.aborts == ["a"])
    client.submit([generate("d"), generate("e")])
    assert client.open_sequences == 2


async def test_while_the_engine_calibrates_requests_are_taken_but_it_is_not_ready(tmp_path: Path) -> None:
    engine = StubEngine(f"ipc://{tmp_path}/bus", lambda request: [7, 8, 9], calibrating=True)
    engine.start()
    client = EngineClient(engine.endpoint, max_queue=1, health_timeout=0.5, clock=time.monotonic, probe_interval=0.05)
    await client.start()
    try:
        await until(lambda: client.healthy)
        with pytest.raises(EngineUnavailable, match="measures what its drafters gain"):
            _ = client.ready_info
        assert await tokens(client.submit([generate("a")])) == [7, 8, 9]
        engine.calibrating = False
        await until(lambda: not client.status.calibrating)
        assert client.ready_info == client.info
    finally:
        await client.stop()
        await asyncio.to_thread(engine.stop)


async def test_a_finished_sequence_is_not_aborted(engine: StubEngine, client: EngineClient) -> None:
    submission = client.submit([generate("a")])
    await tokens(submission)
    submission.close()
    await tokens(client.submit([generate("b")]))
    assert engine.aborts == []


async def test_a_failed_request_raises(engine: StubEngine, client: EngineClient) -> None:
    engine.fail_after = 1
    submission = client.submit([generate("a")])
    with pytest.raises(EngineFailed, match="stage 1 died"):
        await tokens(submission)
    assert client.open_sequences == 0


async def test_a_lost_engine_fails_everything_and_its_successor_gets_nothing_old(
    engine: StubEngine, client: EngineClient
) -> None:
    engine.pause_after = 1
    submission = client.submit([generate("a"), generate("b")])
    await submission.get()
    await asyncio.to_thread(engine.stop)
    with pytest.raises(EngineUnavailable, match="restarting"):
        await tokens(submission)
    assert not client.healthy
    assert client.open_sequences == 0
    with pytest.raises(EngineUnavailable):
        client.submit([generate("c")])
    engine.generates.clear()
    engine.pause_after = None
    await asyncio.to_thread(engine.start)
    await until(lambda: client.healthy)
    assert await tokens(client.submit([generate("d")])) == [7, 8, 9]
    assert [request.id for request in engine.generates] == ["d"]
    assert engine.aborts == []


RESUME = {"resume_attempts": 2, "resume_timeout": 10.0}


async def started(engine: StubEngine, **options: Any) -> EngineClient:
    client = EngineClient(
        engine.endpoint, max_queue=3, health_timeout=0.5, clock=time.monotonic, probe_interval=0.05, **options
    )
    await client.start()
    return client


async def test_open_sequences_go_on_in_the_next_engine(engine: StubEngine) -> None:
    client = await started(engine, **RESUME)
    await until(lambda: client.healthy)
    engine.pause_after = 1
    first, second = client.submit([generate("a")]), client.submit([generate("b")])
    assert (await first.get()).tokens == [7]
    await asyncio.to_thread(engine.stop)
    await until(lambda: not client.healthy)
    with pytest.raises(EngineUnavailable, match="connection to the engine was lost"):
        client.submit([generate("c")])
    engine.generates.clear()
    engine.pause_after = None
    await asyncio.to_thread(engine.start)
    assert await tokens(first) == [8, 9]
    assert await tokens(second) == [7, 8, 9]
    assert [(request.id, request.generated) for request in engine.generates] == [("a", (7,)), ("b", ())]
    assert (client.resumed, client.open_sequences) == (2, 0)
    await client.stop()


async def test_an_engine_that_does_not_come_back_in_time_is_given_up(engine: StubEngine) -> None:
    client = await started(engine, resume_attempts=2, resume_timeout=0.3)
    await until(lambda: client.healthy)
    engine.pause_after = 1
    submission = client.submit([generate("a")])
    await asyncio.to_thread(engine.stop)
    with pytest.raises(EngineUnavailable, match="connection to the engine was lost"):
        await tokens(submission)
    await client.stop()


async def test_an_engine_that_comes_back_as_another_one_does_not_go_on_with_old_sequences(engine: StubEngine) -> None:
    client = await started(engine, **RESUME)
    await until(lambda: client.healthy)
    engine.pause_after = 1
    submission = client.submit([generate("a")])
    await asyncio.to_thread(engine.stop)
    engine.fingerprint = {"dtype": "bfloat16"}
    await asyncio.to_thread(engine.start)
    with pytest.raises(EngineUnavailable, match="other settings"):
        await tokens(submission)
    await until(lambda: client.healthy)
    await client.stop()


async def test_an_engine_of_another_model_is_refused_with_both_sides_named(engine: StubEngine) -> None:
    engine.fingerprint = {"tokenizer.json": "f00d"}
    client = await started(engine, fingerprint={"tokenizer.json": "beef"}, **RESUME)
    await until(lambda: "tokenizer.json is beef for this server, f00d for the engine" in trouble(client))
    assert not client.healthy
    engine.fingerprint = {"tokenizer.json": "beef"}
    await until(lambda: client.healthy)
    await client.stop()


def trouble(client: EngineClient) -> str:
    """Why requests are refused."""
    with pytest.raises(EngineUnavailable) as caught:
        _ = client.info
    return str(caught.value)


async def test_a_message_that_cannot_be_read_does_not_change_the_text(engine: StubEngine) -> None:
    client = await started(engine, **RESUME)
    await until(lambda: client.healthy)
    engine.pause_after = 2
    submission = client.submit([generate("a")])
    assert (await submission.get()).tokens == [7]
    engine.noise = b"of another version"
    await until(lambda: client.resumed == 1)
    engine.pause_after = None
    assert await tokens(submission) == [8, 9]
    await client.stop()


async def test_a_hung_engine_fails_everything_and_is_told(engine: StubEngine, client: EngineClient) -> None:
    engine.pause_after = 1
    submission = client.submit([generate("a")])
    await submission.get()
    engine.silent = True
    with pytest.raises(EngineUnavailable, match="does not answer"):
        await tokens(submission)
    assert not client.healthy
    await asyncio.to_thread(engine.wait, lambda: engine.aborts == ["a"])
    engine.silent = False
    await until(lambda: client.healthy)


async def test_shutting_down_fails_everything(engine: StubEngine, client: EngineClient) -> None:
    engine.pause_after = 1
    submission = client.submit([generate("a")])
    client.shut("closing time")
    with pytest.raises(EngineUnavailable, match="closing time"):
        await tokens(submission)
    with pytest.raises(EngineUnavailable):
        client.submit([generate("b")])


INTERVAL = 1.0


@given(
    st.lists(st.tuples(st.sampled_from(["tick", "answer", "token", "late", "lost"]), st.floats(0.1, 9.0)), max_size=40)
)
def test_health_follows_the_last_sign_of_life_of_this_connection(steps: list[tuple[str, float]]) -> None:
    health, now, timeout = EngineHealth(4.0, INTERVAL), 0.0, 4.0
    waiting: tuple[int, float] | None = None  # the probe on its way, and when it was sent
    alive: float | None = None
    looked: float | None = None
    highest = 0
    for step, seconds in steps:
        now += seconds
        if step == "tick":
            number = health.next_probe(now)
            asleep = 0.0 if looked is None else max(0.0, now - looked - 2 * INTERVAL)
            looked = now
            alive = None if alive is None else alive + asleep
            waiting = None if waiting is None else (waiting[0], waiting[1] + asleep)
            if waiting is not None and now - waiting[1] <= timeout:
                assert number is None
            else:
                assert number is not None
                assert number > highest
                highest, waiting = number, (number, now)
        elif step == "answer" and waiting is not None:
            assert health.answered(waiting[0], now)
            waiting, alive = None, now
        elif step == "token":
            health.heard(now)
            alive = None if alive is None else now
        elif step == "late":
            assert not health.answered(highest + 1, now)
        elif step == "lost":
            health.disconnected()
            waiting = alive = None
        assert health.healthy(now) == (alive is not None and now - alive <= timeout)


def test_a_process_that_was_suspended_does_not_blame_the_engine() -> None:
    health = EngineHealth(4.0, INTERVAL)
    number = health.next_probe(0.0)
    assert number is not None
    assert health.answered(number, 0.1)
    assert health.next_probe(1.0) == number + 1
    assert health.next_probe(3600.0) is None
    assert health.healthy(3600.0)
    assert health.answered(number + 1, 3600.0)


async def test_a_suspended_server_goes_on_with_its_requests(engine: StubEngine) -> None:
    now = 0.0
    client = EngineClient(engine.endpoint, max_queue=1, health_timeout=5.0, clock=lambda: now, probe_interval=0.02)
    await client.start()
    await until(lambda: client.healthy)
    engine.pause_after = 1
    submission = client.submit([generate("a")])
    assert (await submission.get()).tokens == [7]
    now = 3600.0
    before = client.figures.status
    await until(lambda: client.figures.status is not before)
    engine.pause_after = None
    assert await tokens(submission) == [8, 9]
    await client.stop()


def status(cycles: int, stages: list[StageTimings]) -> Status:
    return Status(0, INFO, 0, 0, EngineStats(full_cycles=cycles, full_cycle_ns=cycles * 10_000_000), CHOICE, stages)


def test_figures_are_of_the_last_interval_with_full_cycles() -> None:
    figures = EngineFigures()
    figures.update(status(5, [StageTimings(), StageTimings()]))
    assert (figures.busy_ratio, figures.cycle_seconds) == ([0.0, 0.0], None)
    fast = StageTimings(frames=10, forward_ns=30_000_000, idle_ns=70_000_000)
    slow = StageTimings(frames=10, forward_ns=80_000_000, receive_ns=20_000_000)
    figures.update(status(15, [fast, slow]))
    assert figures.busy_ratio == [0.3, 0.8]
    assert figures.cycle_seconds == pytest.approx(0.010)
    assert figures.fixed_cost_seconds == pytest.approx(0.002)
    figures.update(status(15, [fast, slow]))
    assert figures.busy_ratio == [0.0, 0.0]
    assert figures.cycle_seconds == pytest.approx(0.010)
