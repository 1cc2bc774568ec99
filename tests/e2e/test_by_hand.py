"""The processes of deploy/compose.yaml started one by one, by a supervisor that restarts each of them by itself."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx
import pytest

from tests.e2e.serving import wait_until
from workers.shared.hosts.tokens import draw_token
from workers.shared.processes.free_port import free_port

pytestmark = pytest.mark.timeout(900)

STALL = 4.0  # seconds
BACK = 400.0  # seconds in which a group has to answer again: a few rounds of starting on a very busy machine
PROMPT = [40, 41, 42, 40, 41, 42, 40, 41]


@dataclass
class Service:
    """One process that is started again whenever it ends, as `restart: unless-stopped` does."""

    arguments: tuple[str, ...]
    log: Path
    process: "subprocess.Popen[bytes]" = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False

    def __post_init__(self) -> None:
        self._start()
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

    def _start(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.arguments], env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def _supervise(self) -> None:
        while True:
            self.process.wait()
            with self._lock:
                if self._stopped:
                    return
                self._start()


LONG = {"model": "tiny", "prompt": PROMPT, "max_tokens": 300, "temperature": 0, "ignore_eos": True}


@dataclass
class Group:
    """All services of one engine and its API server."""

    url: str
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
        return "\n".join(f"--- {name}\n{service.log.read_text()}" for name, service in self.services.items())

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
    commands: dict[str, tuple[str, ...]] = {"api": ("server", "--settings", str(folder / "server.json"))}
    commands |= {f"stage-{i}": ("workers", "--stage", str(i), *engine) for i in reversed(range(stages))}
    commands["engine"] = ("speculation", *engine)
    services = {name: Service(arguments, folder / f"{name}.log") for name, arguments in commands.items()}
    group = Group(f"http://127.0.0.1:{port}", services)
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
