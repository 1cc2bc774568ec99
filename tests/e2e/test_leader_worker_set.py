"""The commands of the LeaderWorkerSet in deploy/kubernetes, as processes in the environment that its pods are given."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.serving import Serving
from tests.processes import wait_until
from tests.unit.test_deploy_hosts import leader_worker_set
from workers.shared.hosts.tokens import draw_token
from workers.shared.processes.free_port import free_port

pytestmark = pytest.mark.timeout(600)

START = 300.0  # seconds, on a very busy machine
HERE = {"ECHELON_MODEL": "tiny", "ECHELON_DEVICE": "cpu", "ECHELON_TOKEN": draw_token()}  # where there is no cluster


class Pod:
    """A pod's container: its variables, and its command with those in it, as Kubernetes writes them there."""

    def __init__(self, role: str, folder: Path, given: dict[str, str], bus: int) -> None:
        template = leader_worker_set()["spec"]["leaderWorkerTemplate"]
        (container,) = template[f"{role}Template"]["spec"]["containers"]
        named = {variable["name"]: variable.get("value", "") for variable in container["env"]}
        self.log = folder / f"{role}.log"
        self._variables = given | {name: HERE[name] for name in named}
        words = [word.replace(":5550", f":{bus}") for word in container["args"]]  # a port that is free here
        for name, value in self._variables.items():
            words = [word.replace(f"$({name})", value) for word in words]
        assert not any("$(" in word for word in words), words
        self._words = words

    def start(self, *more: str) -> "subprocess.Popen[bytes]":
        """The image's entry point is `python -m`; its cache is the pod's own."""
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | self._variables
        with self.log.open("ab") as log:
            whole = [sys.executable, "-m", *self._words, *more]
            return subprocess.Popen(whole, env=environment, stdout=log, stderr=subprocess.STDOUT)


def test_a_group_of_two_pods_serves_and_comes_back_when_it_is_created_again(tmp_path: Path) -> None:
    """`restartPolicy: RecreateGroupOnPodRestart`: both pods are started again when one of them has died."""
    bus, port = free_port(1 + 3 + 2 * 2), free_port()
    group = {"LWS_LEADER_ADDRESS": "127.0.0.1", "LWS_GROUP_SIZE": "2"}
    leader = Pod("leader", tmp_path, group | {"LWS_WORKER_INDEX": "0"}, bus)
    worker = Pod("worker", tmp_path, group | {"LWS_WORKER_INDEX": "1"}, bus)
    answers = []
    for _ in range(2):
        pods = [leader.start("--port", str(port)), worker.start()]
        running = Serving(f"http://127.0.0.1:{port}", pods[0], leader.log)
        try:
            wait_until(lambda r=running: r.health() == 200, START)  # type: ignore[misc]
            assert httpx.get(f"{running.url}/live").status_code == httpx.get(f"{running.url}/ready").status_code == 200
            body = {"model": "tiny", "prompt": [40, 41, 42, 40], "max_tokens": 40, "temperature": 0, "ignore_eos": True}
            response = httpx.post(f"{running.url}/v1/completions", json=body, timeout=START)
            answers.append(response.json()["choices"][0]["text"])
            pods[1].send_signal(signal.SIGKILL)
            wait_until(lambda r=running: r.health() != 200, START)  # type: ignore[misc]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{leader.log.read_text()}\n{worker.log.read_text()}") from None
        finally:
            for pod in pods:
                pod.terminate()
                pod.wait(60)
    assert len(answers[0]) > 0
    assert answers[0] == answers[1]
