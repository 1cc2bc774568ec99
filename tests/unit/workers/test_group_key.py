"""Sockets of a group: holders of its token get through, and nobody else, whatever they try."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workers.shared.bus import open_socket
from workers.shared.errors import ConfigError
from workers.shared.hosts.group_key import GroupContext, group_key, protect
from workers.shared.hosts.tokens import check_token, draw_token

TOKEN = draw_token()
SECONDS = 5.0
MOMENT_MS = 300  # what is refused has had its chance

Setup = Callable[["zmq.Socket[Any]"], None]


@pytest.fixture(scope="module")
def context() -> Iterator[GroupContext]:
    made = GroupContext(TOKEN)
    yield made
    made.term()


@pytest.fixture
def listening(context: GroupContext) -> Iterator["zmq.Socket[Any]"]:
    opened = open_socket(context, zmq.PULL, "tcp://127.0.0.1:*", bind=True, token=TOKEN)
    yield opened
    opened.close()


def address(listening: "zmq.Socket[Any]") -> str:
    return listening.getsockopt_string(zmq.LAST_ENDPOINT)


def sent_by(setup: Setup, listening: "zmq.Socket[Any]", wait_ms: int) -> bytes | None:
    """What arrives of a client that is set up in this way."""
    with zmq.Context() as stranger, stranger.socket(zmq.PUSH) as push:
        push.linger = 0
        setup(push)
        push.connect(address(listening))
        push.send(b"hello")
        return listening.recv() if listening.poll(wait_ms) else None


def with_token(token: str) -> Setup:
    return lambda push: protect(push, token, listens=False)


def with_a_key_of_its_own(push: "zmq.Socket[Any]") -> None:
    """As somebody who has found out the group's public key, which never travels, but not the secret one."""
    push.curve_publickey, push.curve_secretkey = zmq.curve_keypair()
    push.curve_serverkey = group_key(TOKEN).public


def test_holders_of_the_token_get_through(listening: "zmq.Socket[Any]") -> None:
    assert sent_by(with_token(TOKEN), listening, int(SECONDS * 1000)) == b"hello"


@pytest.mark.parametrize(
    "setup",
    [lambda push: None, with_token(draw_token()), with_a_key_of_its_own],
    ids=["plain", "other token", "other key"],
)
def test_nobody_else_does(listening: "zmq.Socket[Any]", setup: Setup) -> None:
    assert sent_by(setup, listening, MOMENT_MS) is None
    assert sent_by(with_token(TOKEN), listening, int(SECONDS * 1000)) == b"hello"


def test_a_client_does_not_speak_to_an_impostor() -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as impostor:
        impostor.curve_server = True
        impostor.curve_publickey, impostor.curve_secretkey = zmq.curve_keypair()
        impostor.bind("tcp://127.0.0.1:*")
        assert sent_by(with_token(TOKEN), impostor, MOMENT_MS) is None


def test_a_socket_refuses_everybody_where_nobody_checks_keys() -> None:
    with zmq.Context() as unchecked:
        opened = open_socket(unchecked, zmq.PULL, "tcp://127.0.0.1:*", bind=True, token=TOKEN)
        assert sent_by(with_token(TOKEN), opened, MOMENT_MS) is None
        opened.close()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.sampled_from([b"", b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(16 + 32)]))
def test_noise_harms_nobody(listening: "zmq.Socket[Any]", noise: bytes, greeting: bytes) -> None:
    """Bytes from anybody, alone or after a valid greeting: members still get through afterwards."""
    host, port = address(listening).removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as stranger:
        stranger.sendall(greeting + noise)
    assert sent_by(with_token(TOKEN), listening, int(SECONDS * 1000)) == b"hello"


@pytest.mark.parametrize("token", ["", "short", "with spaces in between", "schlüssel-schlüssel", "a" * 20 + "\n"])
def test_tokens_that_protect_nothing_are_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="--token"):
        check_token(token)


def test_a_drawn_token_is_accepted_and_gives_the_same_key_everywhere() -> None:
    token = draw_token()
    check_token(token)
    assert token.isalnum()  # one that began with a dash was an option to the command line: one in 64 did
    assert group_key(token) == group_key(token) != group_key(draw_token())
