"""Rank 0 among strangers: noise on its sockets, clients of other versions, clients that vanish."""

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from tests.harness import Client, LocalEngine, local_engine
from workers.shared.bus import encode, open_socket
from workers.shared.messages import Failed, Generate, Pong, Sampling, StageTimings, Tokens

PROMPT = [40, 41, 42, 40, 41, 42]
LONG = 4000
GREEDY = Sampling(seed=0, temperature=0)


@pytest.fixture(scope="module")
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture(scope="module")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    folder = tmp_path_factory.mktemp("bus")
    addresses = {"bus": f"ipc://{folder}/bus", "results": f"ipc://{folder}/results"}
    with local_engine(tiny_model, (8, 8), max_model_len=4096, addresses=addresses) as running:
        yield running


def test_noise_on_its_sockets_is_counted_and_changes_nothing(
    engine: LocalEngine, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    expected = engine.client.generate(PROMPT, 20).tokens
    dropped = engine.client.status().dropped
    rng = random.Random(0)
    endpoints = engine.config.endpoints
    noise = [rng.randbytes(rng.randrange(80)) for _ in range(100)]
    whole = encode(Generate("x", PROMPT, 5, GREEDY))
    noise += [whole[:end] for end in range(len(whole))]
    results = open_socket(context, zmq.PUSH, endpoints.results, bind=False)
    bus = open_socket(context, zmq.DEALER, endpoints.bus, bind=False)
    asked = engine.client.send(PROMPT, 20)
    for data in noise:
        bus.send(data)
        bus.send_multipart([data, b"", data])
        results.send(data)
    results.send(encode(Pong(1, 7, StageTimings())))  # of a stage that does not exist
    assert engine.client.result(asked).tokens == expected
    assert engine.client.generate(PROMPT, 20).tokens == expected
    # Each of them is another process's, so it may still be on its way.
    while engine.client.status().dropped < dropped + 3 * len(noise) + 1:
        pass
    assert bus.poll(0) == 0, "noise was answered"
    bus.close()
    results.close()


def test_a_request_that_cannot_be_served_is_answered(engine: LocalEngine) -> None:
    request = Generate("odd", [40, 10**6], 5, GREEDY)
    other = msgspec.to_builtins(request) | {"prompt": "of another version"}
    for data, reason in ((encode(request), "token ids outside"), (msgspec.msgpack.encode(other), "cannot read")):
        engine.client.send_bytes(data)
        answer = engine.client.receive()
        assert isinstance(answer, Failed)
        assert answer.id == "odd"
        assert reason in answer.error


def test_requests_of_a_client_that_has_gone_are_ended(
    engine: LocalEngine, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    leaver = Client(context, engine.config.endpoints.bus)
    for _ in range(3):
        leaver.send(PROMPT, LONG)
    while not isinstance(leaver.receive(), Tokens):
        pass
    assert engine.client.status().running + engine.client.status().waiting == 3
    leaver.close()
    while (status := engine.client.status()).running or status.waiting:
        pass
    assert engine.client.generate(PROMPT, 3).finish == "length"
