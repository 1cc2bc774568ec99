"""An address that something else has is waited for, as long as it may take to leave, and then refused."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zmq

from workers.shared.bus import open_socket
from workers.shared.processes.free_port import free_port

SECONDS = 60.0


@pytest.fixture
def address() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def test_an_address_in_use_is_refused(context: "zmq.Context[Any]", address: str) -> None:
    held = open_socket(context, zmq.PULL, address, bind=True)
    with pytest.raises(zmq.ZMQError, match="in use"):
        open_socket(context, zmq.PULL, address, bind=True)
    held.close()


def test_an_address_is_bound_once_it_is_free(context: "zmq.Context[Any]", address: str) -> None:
    leaving = open_socket(context, zmq.PULL, address, bind=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(open_socket, context, zmq.PULL, address, bind=True, patience=SECONDS)
        leaving.close()
        bound = waiting.result(SECONDS)
    sender = open_socket(context, zmq.PUSH, address, bind=False)
    sender.send(b"heard")
    assert bound.poll(int(SECONDS * 1000))
    assert bound.recv() == b"heard"
