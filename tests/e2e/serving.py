"""`echelon serve` as an operator starts it: real processes, a real port."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai

from tests.processes import children, command, wait_until
from workers.shared.processes.free_port import free_port

MODEL_LABEL = re.compile(r'\{model_name="[^"]*"\}|model_name="[^"]*",|,model_name="[^"]*"')  # every series has it


@dataclass
class Serving:
    """A running `echelon serve`."""

    url: str
    launcher: "subprocess.Popen[bytes]"
    log: Path

    def client(self) -> openai.OpenAI:
        http = httpx.Client(verify=False)  # as there are no certificates, none need be read: that takes a while
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120, http_client=http)

    def health(self) -> int:
        try:
            return httpx.get(f"{self.url}/health", timeout=30, verify=False).status_code
        except httpx.TransportError:
            return 0

    def metric(self, series: str) -> float:
        """One series of /metrics, such as `echelon:stage_frames_total{outcome="computed",stage="0"}`."""
        for line in httpx.get(f"{self.url}/metrics", timeout=30, verify=False).text.splitlines():
            name, _, value = MODEL_LABEL.sub("", line).rpartition(" ")
            if name == series:
                return float(value)
        raise AssertionError(f"/metrics has no {series}")

    def process(self, *words: str) -> int:
        """Pid of the launcher's child whose command line contains all of `words`, such as `--stage 1`."""
        (pid,) = [pid for pid in children(self.launcher.pid) if all(word in command(pid) for word in words)]
        return pid


@contextmanager
def serving(folder: Path, model: str, *options: str, ready: float = 300.0, exit_code: int = 0) -> Iterator[Serving]:
    """Starts a server, waits until it is healthy, and checks at the end that no process is left."""
    port = free_port()
    log = folder / f"serve-{port}.log"
    arguments = [sys.executable, "-m", "server.cli", "serve", model, "--port", str(port), *options]
    with log.open("wb") as output:
        launcher = subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT)
    running = Serving(f"http://127.0.0.1:{port}", launcher, log)
    started: list[int] = []
    try:
        try:
            wait_until(lambda: running.health() == 200 or launcher.poll() is not None, ready)
            assert launcher.poll() is None, "the launcher left"
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{log.read_text()}") from None
        yield running
        started = children(launcher.pid)
    finally:
        if launcher.poll() is None:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(60)
    assert launcher.returncode == exit_code, log.read_text()
    assert [pid for pid in started if command(pid)] == []
