"""The processes of deploy/compose.yaml started one by one, by a supervisor that restarts each of them by itself.

Stages are copies of one process that has imported torch once for all of their starts.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import httpx
import pytest

from tests.processes import wait_until
from workers.shared.hosts.tokens import draw_token
from workers.shared.processes.children import Process
from workers.shared.processes.forked import STAGES, ForkServer
from workers.shared.processes.free_port import free_port

pytestmark = pytest.mark.timeout(900)

STALL = 4.0  # seconds
BACK = 400.0  # seconds in which a group has to answer again: a few rounds of starting on a very busy machine
PROMPT = [40, 41, 42, 40, 41, 42, 40, 41]


@dataclass
class Service:
    """One process that is started again whenever it ends, as `restart: unless-stopped` does."""

    start: Callable[[], Process]
    process: Process = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False

    def __post_init__(self) -> None:
        self.process = self.start()
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """Kills the process that runs now."""
        with self._lock:
            self.process.kill()

    def stop(self) -> None:
        """Ends it for good."""
        with self._lock:
            self._stopped = True
            self.process.kill()
        self._thread.join(10)

    def _supervise(self) -> None:
        while True:
            self.process.wait()
            with self._lock:
                if self._stopped:
                    return
                self.process = self.start()


@dataclass
class Starts:
    """Starts of `python -m` something: an own process with its log, or a copy, whose words are pytest's."""

    folder: Path
    stages: ForkServer
    _lock: threading.Lock = field(default_factory=threading.Lock)  # one start after the other

    def alone(self, *arguments: str) -> Process:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, "-m", *arguments]
        with self._lock, (self.folder / f"{arguments[0]}.log").open("ab") as output:
            return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)

    def copied(self, *arguments: str) -> Process:
        with self._lock:
            return self.stages.spawn(arguments[0], *arguments).process


LONG = {"model": "tiny", "prompt": PROMPT, "max_tokens": 300, "temperature": 0, "ignore_eos": True}


@dataclass
class Group:
    """All services of one engine and its API server."""

    url: str
    folder: Path
    services: dict[str, Service]

    def healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=30).status_code == 200
        except httpx.TransportError:
            return False

    def answer(self) -> str:
        """Greedy text after PROMPT."""
        response = httpx.post(f"{self.url}/v1/completions", json=LONG, timeout=300)
        response.raise_for_status()
        text: str = response.json()["choices"][0]["text"]
        return text

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in self.folder.glob("*.log"))

    def wait_until_healthy(self, seconds: float) -> None:
        try:
            wait_until(self.healthy, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.logs()}") from None


@contextmanager
def started(folder: Path, transport: Literal["zmq", "gloo"], stages: int) -> Iterator[Group]:
    """A group of what `echelon plan` writes, started in an order in which nothing finds what it needs at first."""
    port = free_port()
    hosts, base = ",".join(["127.0.0.1"] * (stages + 1)), free_port(3 + 2 * stages)
    arguments = ["--out", str(folder), "--hosts", hosts, "--base-port", str(base), "--transport", transport]
    arguments += ["--max-model-len", "512", "--drafter", "ngram", "--stall-timeout", str(STALL), "--port", str(port)]
    if transport == "zmq":  # as between hosts: authenticated and encrypted
        arguments += ["--token", draw_token()]
    command = [sys.executable, "-m", "server.cli", "plan", "tiny", *arguments]
    subprocess.run(command, check=True, timeout=BACK, capture_output=True)
    engine = ("--config", str(folder / "engine.json"))
    with ForkServer(*STAGES) as copies:
        starts = Starts(folder, copies)
        services = {"api": Service(partial(starts.alone, "server", "--settings", str(folder / "server.json")))}
        for stage in reversed(range(stages)):
            services[f"stage-{stage}"] = Service(partial(starts.copied, "workers", "--stage", str(stage), *engine))
        services["engine"] = Service(partial(starts.alone, "speculation", *engine))
        group = Group(f"http://127.0.0.1:{port}", folder, services)
        try:
            group.wait_until_healthy(BACK)
            yield group
        finally:
            for service in services.values():
                service.stop()


@pytest.fixture(scope="module")
def zmq_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with started(tmp_path_factory.mktemp("zmq"), "zmq", stages=2) as running:
        yield running


@pytest.fixture(scope="module")
def gloo_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with started(tmp_path_factory.mktemp("gloo"), "gloo", stages=2) as running:
        yield running


def killed_in_mid_answer(group: Group, victims: tuple[str, ...]) -> str:
    """The streamed text of an answer while `victims` are killed: whole, unless the API server is among them."""
    text = ""
    with httpx.stream("POST", f"{group.url}/v1/completions", json=LONG | {"stream": True}, timeout=300) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
        text += json.loads(next(lines))["choices"][0]["text"]
        for victim in victims:
            group.services[victim].kill()
        with contextlib.suppress(httpx.TransportError):
            for line in lines:
                if line != "[DONE]":
                    text += json.loads(line)["choices"][0]["text"]
    return text


def check_recovery(group: Group, victims: tuple[str, ...]) -> None:
    expected = group.answer()
    received = killed_in_mid_answer(group, victims)
    assert received == expected or ("api" in victims and expected.startswith(received))
    group.wait_until_healthy(BACK)
    assert group.answer() == expected


@pytest.mark.parametrize("victims", [("stage-1",), ("engine", "stage-0"), ("api",)], ids="+".join)
def test_whatever_is_killed_in_mid_answer_the_group_comes_together_again(
    zmq_group: Group, victims: tuple[str, ...]
) -> None:
    check_recovery(zmq_group, victims)


def test_so_does_one_over_torch_distributed_whose_first_stage_keeps_the_rendezvous(gloo_group: Group) -> None:
    check_recovery(gloo_group, ("stage-0",))
