"""A lost connection is noticed, although the socket would hide it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from workers.shared.bus import open_socket
from workers.shared.connection import ConnectionWatch

WAIT_MS = 10_000


@pytest.fixture
def context() -> Iterator["zmq.Context[Any]"]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


def wait_for_loss(watch: ConnectionWatch) -> None:
    assert watch.events.poll(WAIT_MS), "the loss was not reported"


def connected_pair(context: "zmq.Context[Any]", endpoint: str) -> tuple["zmq.Socket[Any]", "zmq.Socket[Any]"]:
    """A PUSH that listens and a PULL that has received from it."""
    push = open_socket(context, zmq.PUSH, endpoint, bind=True)
    pull = open_socket(context, zmq.PULL, push.getsockopt_string(zmq.LAST_ENDPOINT), bind=False)
    push.send(b"hello")
    assert pull.poll(WAIT_MS)
    assert pull.recv() == b"hello"
    return push, pull


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
@pytest.mark.parametrize("end", ["listening", "connecting"])
def test_either_end_notices_that_the_other_has_gone(
    context: "zmq.Context[Any]", tmp_path: Path, scheme: str, end: str
) -> None:
    push, pull = connected_pair(context, "tcp://127.0.0.1:*" if scheme == "tcp" else f"ipc://{tmp_path}/socket")
    watched, leaving = (push, pull) if end == "listening" else (pull, push)
    watch = ConnectionWatch(watched)
    assert not watch.lost()
    leaving.close()
    wait_for_loss(watch)
    assert watch.lost()
    assert not watch.lost(), "a loss is told once"
    watch.close()


def test_an_address_at_which_nobody_listens_yet_is_no_loss(context: "zmq.Context[Any]", tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/socket"
    pull = open_socket(context, zmq.PULL, endpoint, bind=False)
    watch = ConnectionWatch(pull)
    push = open_socket(context, zmq.PUSH, endpoint, bind=True)
    push.send(b"hello")
    assert pull.poll(WAIT_MS)
    assert not watch.lost()
    watch.close()
