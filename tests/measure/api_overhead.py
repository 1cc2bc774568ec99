"""What the API server adds: `python -m tests.measure.api_overhead [--clients 1,64] [--requests 20] [--tokens 100]`.

An engine in a process of its own gives tokens at fixed times and writes down when; the client here writes down when
each arrives. Added to the first token: all of its time that is not the engine's, from the request's first byte to the
event's last. Added to a later token: from its message on the bus to its event at the client. The floor is what remains
if the server does nothing but pass messages on (`tests.measure.bare_server`).
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from server.settings import ServerSettings, save_settings
from tests.e2e.stub_api import MODEL, ask, health, wait_until
from tests.small_model import write_model_folder
from workers.shared.processes.free_port import free_port

INTERVAL = {1: 0.01, 64: 0.1}  # seconds between tokens of a request, by clients; a busy machine measures itself


async def one_request(port: int, tokens: int) -> tuple[str, list[int]]:
    """Id, and the times (ns) at which the request was sent and each token arrived."""
    body = json.dumps(ask(stream=True, max_tokens=tokens)).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times = [time.monotonic_ns()]
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    lines: list[tuple[int, bytes]] = []
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            lines.append((time.monotonic_ns(), line))
    writer.close()
    chunks = [(at, json.loads(line[6:])) for at, line in lines]
    assert "error" not in chunks[-1][1], chunks[-1][1]
    times += [at for at, chunk in chunks if chunk["choices"][0]["delta"].get("content")]
    return chunks[0][1]["id"], times


async def measure(port: int, clients: int, requests: int, tokens: int) -> list[tuple[str, list[int]]]:
    """All requests, `clients` at a time."""

    async def client() -> list[tuple[str, list[int]]]:
        return [await one_request(port, tokens) for _ in range(requests)]

    await one_request(port, 5)  # the first one warms everything up
    return [result for results in await asyncio.gather(*(client() for _ in range(clients))) for result in results]


def percentile(values: Sequence[float], share: float) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used; unlike the times above it does not depend on what else the machine does."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


SERVERS = {
    "server": ["server", "--settings"],
    "floor": ["tests.measure.bare_server"],
}


def run(kind: str, clients: int, requests: int, tokens: int) -> str:
    """One row of the table: milliseconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        settings = ServerSettings(
            model=str(write_model_folder(folder / "model")),
            served_model_name=MODEL,
            bus=f"ipc://{folder}/bus",
            port=free_port(),
            max_queue=256,
        )
        save_settings(settings, folder / "settings.json")
        log = folder / "times.json"
        interval = str(INTERVAL.get(clients, 0.1))
        engine = subprocess.Popen(
            [sys.executable, "-m", "tests.measure.paced_engine", settings.bus, interval, str(log), settings.model]
        )
        with (folder / "log").open("wb") as sink:
            command = [sys.executable, "-m", *SERVERS[kind], str(folder / "settings.json")]
            server = subprocess.Popen(command, stderr=sink, env=os.environ | {"OMP_NUM_THREADS": "1"})
        try:
            wait_until(lambda: health(f"http://127.0.0.1:{settings.port}") == 200)
            before = cpu_seconds(server.pid)
            try:
                results = asyncio.run(measure(settings.port, clients, requests, tokens))
            except AssertionError as error:
                error.add_note((folder / "log").read_text())
                raise
            used = cpu_seconds(server.pid) - before
        finally:
            for process in (server, engine):
                process.send_signal(signal.SIGTERM)
                process.wait(10)
        sent = json.loads(log.read_text())
    first, later = [], []
    for request_id, arrived in results:
        left = sent[f"{request_id}-0"]
        assert len(left) == len(arrived) == tokens + 1
        first.append(((arrived[1] - arrived[0]) - (left[1] - left[0])) / 1e6)
        later += [(there - here) / 1e6 for here, there in zip(left[2:], arrived[2:], strict=True)]
    columns = [f"{percentile(values, share):.2f}" for values in (first, later) for share in (0.5, 0.99)]
    columns.append(f"{used / (len(results) * tokens) * 1e3:.2f}")
    return f"| {kind} | {clients} | {' | '.join(columns)} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", default="1,64")
    parser.add_argument("--requests", type=int, default=20, help="of each client")
    parser.add_argument("--tokens", type=int, default=100)
    arguments = parser.parse_args()
    print("| | clients | first token p50 | p99 | later token p50 | p99 | server CPU a token |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for clients in map(int, arguments.clients.split(",")):
        for kind in SERVERS:
            requests = arguments.requests if clients == 1 else 3
            print(run(kind, clients, requests, arguments.tokens), flush=True)


if __name__ == "__main__":
    main()
