"""Whatever is sent, the server answers without a 5xx, stays alive, and serves the next good request."""

import contextlib
import json
import random
import socket
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from tests.e2e.stub_api import REPLY, Api, ask

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def served_next(api: Api) -> None:
    assert api.process.poll() is None
    assert api.client().chat.completions.create(**ask()).choices[0].message.content == REPLY


def connect(api: Api) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(api.url.rsplit(":", 1)[1])), timeout=10)


def status(answer: bytes) -> int | None:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes, or has answered and keeps the connection."""
    connection.settimeout(0.3)
    data = b""
    try:
        while chunk := connection.recv(65536):
            data += chunk
    except (TimeoutError, ConnectionError):
        pass
    return data


GOOD = json.dumps(ask()).encode()
RAW: dict[str, bytes] = {
    "noise": random.Random(1).randbytes(5000),
    "nothing but newlines": b"\r\n" * 2000,
    "half a request line": b"POST /v1/chat",
    "an endless header": b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "ten thousand headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000 + b"\r\n",
    "no version": b"GET /\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a length that is no number": HEAD + b"Content-Length: many\r\n\r\n" + GOOD,
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n" + GOOD,
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + GOOD,
    "length and chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks that are none": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
    "a huge length": HEAD + b"Content-Length: 99999999999999999999\r\n\r\n" + GOOD,
    "less than was promised": HEAD + b"Content-Length: 100000\r\n\r\n" + GOOD,
    "an upgrade": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "a path of nulls": b"GET /%00%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a path that climbs": b"GET /../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("half_closed", [False, True], ids=["open", "half closed"])
def test_raw_bytes(api: Api, name: str, half_closed: bool) -> None:
    with connect(api) as connection:
        try:
            connection.sendall(RAW[name])
            if half_closed:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused before it was all sent
        answer = status(read_all(connection)) if half_closed else None
    assert answer is None or answer < 500
    served_next(api)


def test_connections_that_say_nothing_keep_nobody_out(api: Api) -> None:
    connections = [connect(api) for _ in range(100)]
    try:
        for connection in connections[::2]:
            connection.sendall(HEAD)
        served_next(api)
    finally:
        for connection in connections:
            connection.close()


def test_a_body_that_drips_keeps_nobody_out(api: Api) -> None:
    with connect(api) as connection:
        connection.sendall(HEAD + f"Content-Length: {len(GOOD)}\r\n\r\n".encode())
        for start in range(0, len(GOOD) - 1, 8):
            connection.sendall(GOOD[start : start + 8][: len(GOOD) - 1 - start])
        served_next(api)
        connection.sendall(GOOD[-1:])
        assert status(connection.recv(65536)) == 200
    served_next(api)


def test_an_answer_that_is_not_read_keeps_nobody_out(api: Api) -> None:
    api.reply("a long answer ", end=False)
    body = json.dumps(ask(stream=True, max_tokens=1500)).encode()
    with connect(api) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        api.engine.wait(lambda: len(api.engine.generates) == 1)
    api.reply(REPLY)
    served_next(api)


def nested(depth: int, opening: str, closing: str) -> bytes:
    return (opening * depth + closing * depth).encode()


def field(name: str) -> Callable[[bytes], bytes]:
    return lambda value: json.dumps(ask()).encode()[:-1] + f', "{name}": '.encode() + value + b"}"


VALUES = {
    "deep lists": nested(5000, "[", "]"),
    "deep objects": nested(5000, '{"a":', "}").replace(b":}", b":1}"),
    "a long number": b"9" * 100_000,
    "a large exponent": b"1e999999",
    "not a number": b"NaN",
    "half a surrogate pair": b'"\\ud800"',
    "nulls": b'"\\u0000"',
    "a long string": b'"' + b"a" * 1_000_000 + b'"',
    "many items": b"[" + b"1," * 100_000 + b"1]",
    "a wrong encoding": b'"\xff\xfe"',
}
NAMES = (
    *("messages", "model", "tools", "tool_choice", "response_format", "guided_json", "guided_regex", "guided_choice"),
    *("guided_grammar", "structured_outputs", "stop", "logit_bias", "seed", "temperature", "max_tokens", "stream"),
    *("chat_template_kwargs", "metadata", "user", "stream_options", "stop_token_ids", "n"),
)


@pytest.mark.parametrize("value", VALUES)
def test_hostile_values_in_every_field(api: Api, value: str) -> None:
    with httpx.Client(timeout=30) as client:
        for name in NAMES:
            body = field(name)(VALUES[value])
            headers = {"Content-Type": "application/json"}
            response = client.post(f"{api.url}/v1/chat/completions", content=body, headers=headers)
            assert response.status_code < 500, (name, response.text[:500])
            if response.status_code >= 400:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}, name
    served_next(api)


def test_many_clients_that_leave(api: Api) -> None:
    def leave(seed: int) -> None:
        chance = random.Random(seed)
        body = json.dumps(ask(stream=chance.random() < 0.5)).encode()
        data = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        with contextlib.suppress(OSError), connect(api) as connection:
            connection.settimeout(0.3)
            connection.sendall(data[: chance.randrange(1, len(data) + 1)])
            if chance.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
            elif chance.random() < 0.5:
                connection.recv(chance.randrange(1, 300))

    threads = [threading.Thread(target=leave, args=(seed,)) for seed in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    served_next(api)


def test_requests_made_up_from_the_openapi_document(api: Api) -> None:
    document = schemathesis.openapi.from_url(f"{api.url}/openapi.json")
    operations = [result.ok() for result in document.get_all_operations()]
    assert len(operations) >= 9
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=25, suppress_health_check=list(HealthCheck))
        def check(case: Any) -> None:
            response = case.call()
            assert response.status_code < 500, response.content[:500]
            if response.status_code >= 400:
                assert set(json.loads(response.content)["error"]) == {"message", "type", "param", "code"}

        check()
    served_next(api)
