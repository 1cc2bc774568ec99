"""`echelon serve --gather-at` and hosts that join it, as processes of this one: a group with a token, over loopback."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.e2e.serving import Serving, serving
from tests.processes import command, wait_until
from workers.shared.hosts.tokens import draw_token
from workers.shared.processes.free_port import free_port

pytestmark = pytest.mark.timeout(900)

START = 400.0  # seconds, on a very busy machine
PORTS = 3 + 2 * 3  # of an engine of three stages, from the next port on
LONG = {"model": "tiny", "prompt": [40, 41, 42, 40], "max_tokens": 300, "temperature": 0, "ignore_eos": True}


@dataclass
class Hosts:
    """Hosts that join at one address."""

    folder: Path
    variables: dict[str, str]

    def join(self, *arguments: str, **variables: str) -> "subprocess.Popen[bytes]":
        """Starts `python -m` something that joins."""
        with (self.folder / f"host-{len(list(self.folder.glob('host-*')))}.log").open("wb") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"} | self.variables | variables
            whole = [sys.executable, "-m", *arguments]
            return subprocess.Popen(whole, env=environment, stdout=log, stderr=subprocess.STDOUT)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """What the server and all hosts have said comes with whatever goes wrong."""
        try:
            yield
        except Exception as error:
            logs = sorted(self.folder.glob("*.log"))
            error.add_note("\n".join(f"--- {log.name}\n{log.read_text()}" for log in logs))
            raise


@contextmanager
def ending(*processes: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Ends processes whatever happens; they must go by themselves when asked to."""
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def answer(running: Serving) -> str:
    response = httpx.post(f"{running.url}/v1/completions", json=LONG, timeout=START)
    response.raise_for_status()
    text: str = response.json()["choices"][0]["text"]
    return text


def streamed(running: Serving, after_the_first: "list[subprocess.Popen[bytes]]") -> str:
    """The streamed text of an answer during which a host leaves and another one joins."""
    text = ""
    with httpx.stream("POST", f"{running.url}/v1/completions", json=LONG | {"stream": True}, timeout=START) as events:
        for line in events.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            text += chunk["choices"][0]["text"]
            while after_the_first:
                leaving = after_the_first.pop()
                leaving.send_signal(signal.SIGTERM)
                assert leaving.wait(60) == 0
                after_the_first.clear()
    return text


def test_hosts_join_leave_and_come_back_while_a_stream_goes_on(tmp_path: Path) -> None:
    """Three stages: one here, one on a host of `echelon join`, one started as torchrun would start it."""
    address = f"tcp://127.0.0.1:{free_port(1 + PORTS)}"
    hosts = Hosts(tmp_path, {"ECHELON_TOKEN": draw_token(), "ECHELON_RANK_0": address, "ECHELON_DEVICE": "cpu"})
    by_launcher = hosts.join("workers", RANK="2", WORLD_SIZE="3", LOCAL_RANK="0", ECHELON_MEASURE="false")
    by_hand = hosts.join("server.cli", "join", address, "--measure")
    with hosts.heard(), ending(by_hand, by_launcher):
        options = ("--stages", "3", "--gather-at", address, "--token", hosts.variables["ECHELON_TOKEN"])
        with serving(tmp_path, "tiny", *options, "--max-model-len", "512", ready=START) as running:
            expected = answer(running)
            log = running.log.read_text()
            assert "link stage 0 to stage 1" in log
            assert "link stage 1 to stage 2" in log
            assert [stage_of(by_launcher)] == [2]
            another = hosts.join("server.cli", "join", address, "--no-measure")  # in reserve
            with ending(another):
                wait_until(lambda: running.log.read_text().count("has joined") == 4, START)
                assert streamed(running, [by_hand]) == expected
                wait_until(lambda: running.health() == 200, START)
                assert answer(running) == expected
                assert stage_of(another) == 1
                another.kill()
                wait_until(lambda: running.health() != 200, START)
                back = hosts.join("server.cli", "join", address, "--no-measure")
                with ending(back):
                    wait_until(lambda: running.health() == 200, START)
                    assert answer(running) == expected


def stage_of(host: "subprocess.Popen[bytes]") -> int:
    """The stage that a host holds, as its child's command line says."""
    children = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text().split()
    words = [command(int(child)) for child in children]
    (stage,) = [line[line.index("--stage") + 1] for line in words if "--stage" in line]
    return int(stage)
