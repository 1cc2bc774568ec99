"""What can go wrong under a running server, and the requests that must not notice."""

import ctypes
import json
import os
import random
import signal
import socket
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import zmq

from tests.e2e.serving import Serving
from tests.processes import command, wait_until
from workers.shared.config import Endpoints, load_config
from workers.shared.endpoints import socket_path

STAGES = 3
ROLES = [("speculation",), *(("--stage", str(stage)) for stage in range(STAGES))]
LINKED = [role for role in ROLES if role != ("--stage", "0")]  # those that accept connections of others
PATIENCE = 240.0  # seconds for answers to arrive after a fault, on a machine ten times slower than usual

Kind = Literal["kill", "stop", "slow", "noise", "reset"]

_PIDFD_GETFD = 438  # number of the system call, on all architectures; Python has no name for it

SCHEMA = {
    "type": "object",
    "properties": {"weather": {"enum": ["rain", "sun"]}, "houses": {"type": "integer"}},
    "required": ["weather", "houses"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "write_report", "parameters": SCHEMA, "strict": True}}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "seed": 3}
PLAIN = {"model": "tiny", "ignore_eos": True, "return_token_ids": True}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
# Path and body: greedy and seeded, streamed and not, long prompts, several choices, penalties, a tool, a schema.
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (
        "completions",
        {**PLAIN, **STREAMED, "prompt": [40, 41, 42] * 5, "max_tokens": 150, "temperature": 0, "logprobs": 2},
    ),
    ("completions", {**PLAIN, **STREAMED, "prompt": [50 + i % 90 for i in range(700)], "max_tokens": 60, "seed": 5}),
    (
        "completions",
        {**PLAIN, "prompt": [44, 45], "max_tokens": 60, "seed": 7, "n": 2, "logprobs": 1, "frequency_penalty": 1},
    ),
    ("chat/completions", {**CHAT, **STREAMED, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200}),
    (
        "chat/completions",
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "report", "schema": SCHEMA}}},
    ),
]


@dataclass(frozen=True)
class Fault:
    """What happens to whom."""

    kind: Kind
    role: tuple[str, ...]  # words in the command line of a process
    during: Literal["prefill", "decode"]

    def __str__(self) -> str:
        return f"{self.kind} {' '.join(self.role)} in {self.during}"


def answers(server: Serving) -> list[Any]:
    """Everything that the clients of all requests see, apart from what is drawn by lot for each answer."""
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        return list(pool.map(lambda request: answer(server, *request), REQUESTS))


def answer(server: Serving, path: str, body: dict[str, Any]) -> Any:
    """The choices and the usage of one answer, its events put together."""
    response = httpx.post(f"{server.url}/v1/{path}", json=body, timeout=PATIENCE)
    if response.status_code != 200:
        return response.text
    if not body.get("stream"):
        return _seen([response.json()])
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return _seen([json.loads(item) for item in data[:-1]])


def _seen(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for chunk in chunks:
        if "error" in chunk:
            return chunk
        for choice in chunk["choices"]:
            for name, value in _leaves(choice, str(choice["index"])):
                seen[name] = seen[name] + value if isinstance(value, str | list) and name in seen else value
        if chunk.get("usage"):
            seen["usage"] = {name: chunk["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return seen


def _leaves(value: Any, name: str) -> Iterable[tuple[str, Any]]:
    """Parts of a choice, by their paths; lists that pieces add to are kept whole."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key != "id":
                yield from _leaves(part, f"{name}.{key}")
    elif isinstance(value, list) and value and isinstance(value[0], dict) and "function" in value[0]:
        for place, part in enumerate(value):
            yield from _leaves(part, f"{name}.{part.get('index', place)}")
    elif value is not None:
        yield name, value


def survive(server: Serving, fault: Fault, expected: list[Any], rng: random.Random) -> None:
    """Sends all requests, lets `fault` happen at a random moment, and compares what comes back."""
    prompts, given = server.metric("echelon:prompt_tokens_total"), server.metric("echelon:generation_tokens_total")
    prompts += sum(seen["usage"]["prompt_tokens"] for seen in expected)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(answers, server)
        # All are open, for new ones are refused while there is no engine.
        wait_until(lambda: server.metric("echelon:prompt_tokens_total") >= prompts, PATIENCE)
        if fault.during == "decode":
            some = rng.randrange(5, 300)
            wait_until(lambda: server.metric("echelon:generation_tokens_total") >= given + some, PATIENCE)
        inflict(server, fault, rng)
        seen = waiting.result(PATIENCE)
    for request, mine, theirs in zip(REQUESTS, expected, seen, strict=True):
        assert theirs == mine, f"{fault}: {request}"
    wait_until(lambda: server.health() == 200, PATIENCE)
    assert answer(server, *REQUESTS[0]) == expected[0], str(fault)


def inflict(server: Serving, fault: Fault, rng: random.Random) -> None:
    """Lets it happen, and returns when it is over."""
    if fault.kind == "noise":
        make_noise(server, rng)
        return
    pid = server.process(*fault.role)
    if fault.kind == "reset":
        reset_connection(server, pid)
    elif fault.kind == "kill":
        os.kill(pid, signal.SIGKILL)
    elif fault.kind == "stop":
        os.kill(pid, signal.SIGSTOP)
        if "--stage" in fault.role:
            wait_until(lambda: server.health() == 503, PATIENCE)  # nobody is sent to what hangs
        wait_until(lambda: not command(pid), PATIENCE)  # somebody has ended it
    else:
        pause = threading.Event()
        for _ in range(20):
            os.kill(pid, signal.SIGSTOP)
            pause.wait(0.1)
            os.kill(pid, signal.SIGCONT)
            pause.wait(0.02)


def endpoints_of(server: Serving) -> Endpoints:
    """Where the engine that runs now listens."""
    words = command(server.process("speculation"))
    return load_config(Path(words[words.index("--config") + 1])).endpoints


def reset_connection(server: Serving, pid: int) -> None:
    """Shuts a link down that process `pid` has accepted from another stage or from rank 0, while both live."""
    endpoints = endpoints_of(server)
    paths = {str(socket_path(endpoint)) for endpoint in (*endpoints.data, *endpoints.control)}
    entries = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    linked = {f"socket:[{entry[6]}]" for entry in entries if entry[5] == "03" and entry[-1] in paths}
    files = Path(f"/proc/{pid}/fd")
    descriptor = next(int(file.name) for file in files.iterdir() if os.readlink(file) in linked)
    process = os.pidfd_open(pid)
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0)
        assert copy >= 0, os.strerror(ctypes.get_errno())
        with socket.socket(fileno=copy) as link:
            link.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(process)


def make_noise(server: Serving, rng: random.Random) -> None:
    """Random bytes to every socket of the engine, raw and as ZeroMQ messages of the wrong and of the right kind."""
    endpoints = endpoints_of(server)
    links = [str(socket_path(endpoint)) for endpoint in (*endpoints.control, *endpoints.data[1:])]
    for kind, path in (
        *((socket.SOCK_SEQPACKET, path) for path in links),
        (socket.SOCK_STREAM, endpoints.bus.removeprefix("ipc://")),
    ):
        with socket.socket(socket.AF_UNIX, kind) as stranger, suppress(ConnectionError, FileNotFoundError):
            stranger.connect(path)  # not to an engine that the noise before has ended
            stranger.sendall(rng.randbytes(300))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for pattern in (zmq.DEALER, zmq.PUSH, zmq.REQ):
        peer = context.socket(pattern)
        peer.setsockopt(zmq.LINGER, 100)
        peer.connect(endpoints.bus)
        for _ in range(1 if pattern == zmq.REQ else 20):
            peer.send(rng.randbytes(rng.randrange(100)))
        peer.close()
    context.term()
