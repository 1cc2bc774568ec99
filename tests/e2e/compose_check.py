"""`make compose-check`: builds the images, starts deploy/compose.yaml, chats, kills containers, and chats again.

Where neither Docker nor Podman with Compose is found it says so and ends well. Variables, all optional:

    COMPOSE            the command and its options; else `docker compose`, `docker-compose`, or `podman-compose` (1.4)
    COMPOSE_CHECK      "keep" leaves the images as they are, and builds none
    MODEL              what is served: `tiny` unless given
    and those of deploy/compose.yaml, such as BASE_IMAGE, PIP_INDEX_URL, PROMETHEUS_IMAGE
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
PROJECT = "echelon-check"
PREPARATION, SERVED = "prepare", ("engine", "stage-0", "stage-1", "api", "prometheus")
BUILD_TOOLS = ("gcc", "cc", "make", "git", "rustc")
START, RESTART = 600.0, 300.0  # seconds
# Of podman-compose: earlier ones start `prepare` again beside the others in spite of --no-deps, and the earliest leave
# "${NAME:-}" as it stands and hide what failed.
OLDEST = (1, 4)


def compose_command() -> list[str] | None:
    """The command of Compose with an engine that answers, or None."""
    if given := os.environ.get("COMPOSE"):
        return shlex.split(given)
    for command in (["docker", "compose"], ["docker-compose"], ["podman-compose"]):
        if not succeeds([*command, "version"]) or not succeeds([engine_of(command), "info"]):
            continue
        if command[0] != "podman-compose" or version_in(output(*command, "version")) >= OLDEST:
            return command
        say(f"podman-compose is older than {OLDEST[0]}.{OLDEST[1]}, and cannot start this (pipx has a newer one)")
    return None


def engine_of(compose: list[str]) -> str:
    """The program that runs the containers of a Compose command."""
    return "podman" if "podman" in Path(compose[0]).name else "docker"


def version_in(text: str) -> tuple[int, ...]:
    """The numbers after podman-compose's own name, which early versions misspell, in what it prints about itself."""
    found = re.search(r"podman-composer? version\s+(\d+)\.(\d+)", text)
    return tuple(int(number) for number in found.groups()) if found else ()


def succeeds(command: list[str]) -> bool:
    """Whether a command is there, and ends well."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def output(*command: str) -> str:
    """What a command prints; raises where it fails."""
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def say(text: str) -> None:
    """A line of the report."""
    print(f"compose-check: {text}", flush=True)


class Stack:
    """The services, and the containers behind them."""

    def __init__(self, compose: list[str], port: int, prometheus: int) -> None:
        self._compose = [*compose, "-p", PROJECT, "-f", str(ROOT / "deploy" / "compose.yaml")]
        self._engine = engine_of(compose)
        self._environment = os.environ | {
            "MODEL": os.environ.get("MODEL") or "tiny",
            "API_PORT": str(port),
            "PROMETHEUS_PORT": str(prometheus),
            "BUILDAH_FORMAT": "docker",  # that of OCI, which Podman prefers, knows no health checks
        }
        self.url = f"http://127.0.0.1:{port}"
        self.prometheus = f"http://127.0.0.1:{prometheus}"
        self.model = ""

    def compose(self, *arguments: str, seconds: float = 1800.0) -> None:
        """Runs Compose; raises where it fails."""
        command = [*self._compose, *arguments]
        subprocess.run(command, env=self._environment, stdout=sys.stderr, timeout=seconds, check=True)

    def start(self) -> None:
        """Brings the services up.

        Podman never starts a container again whose dependency has ended, as that on `prepare` has; so with it the
        preparation is run first, and the others are started without.
        """
        if self._engine == "docker":
            self.compose("up", "-d", "--no-build", *SERVED, seconds=START)
        else:
            self.compose("run", "--rm", PREPARATION, seconds=START)
            self.compose("up", "-d", "--no-build", "--no-deps", *SERVED, seconds=START)

    def container(self, service: str) -> str:
        """Name of the newest container of a service."""
        names = output(self._engine, "ps", "-a", "--format", "{{.Names}}").split()
        (name,) = [name for name in names if name.replace("_", "-") == f"{PROJECT}-{service}-1"]
        return name

    def inspect(self, service: str, template: str) -> str:
        """One fact about a service's container."""
        return output(self._engine, "inspect", "--format", template, self.container(service)).strip()

    def execute(self, service: str, *command: str) -> "subprocess.CompletedProcess[str]":
        """Runs a command in a service's container."""
        whole = [self._engine, "exec", self.container(service), *command]
        return subprocess.run(whole, capture_output=True, text=True, timeout=120, check=False)

    def healthy(self, service: str) -> bool:
        """What the image's own health check says."""
        if self._engine == "docker":
            return self.inspect(service, "{{.State.Health.Status}}") == "healthy"
        # Podman wants systemd to do this now and again, which not every machine has.
        return succeeds([self._engine, "healthcheck", "run", self.container(service)])

    def kill(self, service: str) -> None:
        """Kills the container's processes from outside, as a crash would; Compose's own `kill` means "stop"."""
        os.kill(int(self.inspect(service, "{{.State.Pid}}")), signal.SIGKILL)

    def logs(self) -> str:
        """The last lines of every service."""
        tails = []
        for service in SERVED:
            done = subprocess.run(
                [self._engine, "logs", "--tail", "30", self.container(service)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
            )  # fmt: skip
            tails.append(f"--- {service}\n{done.stdout}")
        return "\n".join(tails)

    def ready(self) -> bool:
        """Whether the API says that the loop of rank 0 and every stage answers."""
        try:
            return httpx.get(f"{self.url}/health", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def chat(self) -> str:
        """A greedy answer."""
        if not self.model:
            self.model = httpx.get(f"{self.url}/v1/models", timeout=30).json()["data"][0]["id"]
        body = {"model": self.model, "messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 24}
        response = httpx.post(f"{self.url}/v1/chat/completions", json=body | {"temperature": 0}, timeout=120)
        response.raise_for_status()
        text: str = response.json()["choices"][0]["message"]["content"]
        return text


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Polls; returns the seconds it took, fails after `seconds`."""
    started, pause = time.monotonic(), threading.Event()
    while not condition():
        if time.monotonic() - started > seconds:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        pause.wait(0.5)
    return time.monotonic() - started


def check(stack: Stack) -> None:
    """Raises `AssertionError` where something is not as it should be."""
    say(f"ready after {wait_until(stack.ready, START, 'ready'):.0f} s")
    expected = stack.chat()
    say(f"{stack.model} answers: {expected!r}")
    wait_until(lambda: stack.healthy("api"), RESTART, "the health check of the image")
    for service in ("engine", "api"):
        assert stack.execute(service, "id", "-u").stdout.strip() == "10001", f"{service} runs as another user"
        tools = [tool for tool in BUILD_TOOLS if stack.execute(service, "which", tool).returncode == 0]
        assert not tools, f"{service} has build tools: {tools}"
    say("containers are healthy, run as user 10001, and have no build tools")
    assert config(stack)["endpoints"]["control"][0].startswith("tcp://")
    assert len(config(stack)["endpoints"]["token"]) >= 16
    say("the bus is encrypted; nobody edited a configuration")
    for victim in ("stage-1", "engine", "stage-0", "api"):
        before = stack.inspect(victim, "{{.State.Pid}}")
        stack.kill(victim)
        wait_until(lambda: not stack.ready(), RESTART, f"{victim} killed, noticed")
        took = wait_until(stack.ready, RESTART, f"{victim} killed, back")
        assert stack.inspect(victim, "{{.State.Pid}}") not in (before, "0"), f"{victim} did not start again"
        assert stack.chat() == expected, f"another answer after {victim} was killed"
        say(f"{victim} killed: back after {took:.0f} s, with the same answer")
    wait_until(lambda: scraped(stack) == 1.0, RESTART, "Prometheus scrapes the API")
    say("Prometheus scrapes the API")


def config(stack: Stack) -> Any:
    """The configuration that `prepare` wrote."""
    return json.loads(stack.execute("engine", "cat", "/models/run/engine.json").stdout)


def scraped(stack: Stack) -> float:
    """Whether Prometheus reaches the API, as it says itself."""
    try:
        answer = httpx.get(f"{stack.prometheus}/api/v1/query", params={"query": 'up{job="echelon"}'}, timeout=10)
        return float(answer.json()["data"]["result"][0]["value"][1])
    except (httpx.TransportError, IndexError, ValueError):
        return 0.0


def main() -> int:
    """Exit status."""
    compose = compose_command()
    if compose is None:
        say("skipped: neither Docker nor Podman with a Compose that will do answers on this machine (set COMPOSE)")
        return 0
    stack = Stack(compose, port=18000, prometheus=19090)
    try:
        if os.environ.get("COMPOSE_CHECK") != "keep":
            stack.compose("build", "engine", "api")
        stack.start()
        check(stack)
        say("passed")
        return 0
    except (AssertionError, httpx.HTTPError) as error:
        say(f"failed: {error}\n{stack.logs()}")
        return 1
    finally:
        stack.compose("down", "-v", seconds=300)


if __name__ == "__main__":
    sys.exit(main())
