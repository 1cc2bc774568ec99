"""Connections that begin and do not go on, endless heads, and too many of them: raw sockets."""

import contextlib
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.stub_api import REPLY, Api, ask, launch, wait_until

HEADER_TIMEOUT = 0.4
MAX_CONNECTIONS = 5


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("connections")
    api = launch(folder, header_timeout=HEADER_TIMEOUT, max_connections=MAX_CONNECTIONS)
    api.reply(REPLY)
    yield api
    api.end()
    assert "Traceback" not in api.log.read_text()


def connect(api: Api) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(api.url.rsplit(":", 1)[1])), timeout=10)


def closed(connection: socket.socket) -> bool:
    """Waits for the end of what the server sends."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("head", [b"", b"P", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: "])
def test_an_unfinished_head_is_not_waited_for(api: Api, head: bytes) -> None:
    start = time.monotonic()
    with connect(api) as connection:
        connection.sendall(head)
        assert closed(connection)
    assert HEADER_TIMEOUT * 0.9 < time.monotonic() - start < 5


def test_a_head_that_trickles_in_is_not_waited_for(api: Api) -> None:
    start = time.monotonic()
    with connect(api) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX-A: ")
        connection.settimeout(0.02)
        while time.monotonic() - start < 5:
            try:
                connection.sendall(b"a")
                if not connection.recv(100):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert time.monotonic() - start < 5


def test_an_endless_head_is_refused(api: Api) -> None:
    with connect(api) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX-A: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                connection.sendall(b"a" * 65536)
        assert closed(connection)
    assert httpx.get(f"{api.url}/health").status_code == 200


def test_streams_and_idle_connections_outlast_it(api: Api) -> None:
    api.engine.pause_after = 2
    with httpx.Client(base_url=api.url, timeout=120) as client:
        with client.stream("POST", "/v1/chat/completions", json=ask(stream=True)) as response:
            lines = response.iter_lines()
            next(lines)
            with connect(api) as slow:
                assert closed(slow)  # so that the time is over
            api.engine.pause_after = None
            assert list(lines)[-2] == "data: [DONE]"
        with connect(api) as slow:
            assert closed(slow)
        assert client.get("/health").status_code == 200


def test_connections_are_limited(api: Api) -> None:
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(connect(api)) for _ in range(MAX_CONNECTIONS)]
        for stream in streams:
            stream.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert stream.recv(100).startswith(b"HTTP/1.1 200")
        start = time.monotonic()
        with connect(api) as one_more:
            assert closed(one_more)
        assert time.monotonic() - start < HEADER_TIMEOUT

    def served() -> bool:
        try:
            return httpx.get(f"{api.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(served)
