"""A lost connection is noticed, although the socket would hide it."""

import socket
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from workers.shared.bus import open_socket
from workers.shared.connection import ConnectionWatch

WAIT_MS = 10_000


def wait_for_loss(watch: ConnectionWatch) -> None:
    deadline = time.monotonic() + WAIT_MS / 1000
    while not watch.lost():
        assert watch.events.poll(max(0, int((deadline - time.monotonic()) * 1000))), "the loss was not reported"


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
    assert not watch.lost(), "a loss is told once"
    watch.close()


def test_a_stranger_that_comes_and_goes_is_no_loss(context: "zmq.Context[Any]") -> None:
    push = open_socket(context, zmq.PUSH, "tcp://127.0.0.1:*", bind=True)
    watch = ConnectionWatch(push)
    host, port = push.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://").split(":")
    pull = open_socket(context, zmq.PULL, f"tcp://{host}:{port}", bind=False)
    push.send(b"hello")
    assert pull.poll(WAIT_MS)
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n" * 5):
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(noise)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(100):
                pass
    assert pull.recv() == b"hello"
    assert not watch.lost()
    pull.close()
    wait_for_loss(watch)
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
