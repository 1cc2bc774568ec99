"""What deploy/ has for several hosts: the chart, the LeaderWorkerSet and the systemd units; nothing is started here."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from jsonschema import Draft7Validator

from server.launcher.options import SERVE
from workers.shared.hosts.options import JOIN
from workers.shared.options.declared import options_of
from workers.shared.options.sources import read

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "echelon"
LWS = {"LWS_LEADER_ADDRESS": "echelon-0.echelon.default", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}

EVERYTHING = {
    "serviceMonitor": {"enabled": True},
    "dashboards": {"enabled": True},
    "modelCache": {"create": True, "storageClass": "fast"},
    "secret": {"apiKey": "key", "hfToken": "hf"},
    "options": {"ECHELON_MAX_MODEL_LEN": "4096"},
    "networkPolicy": {"from": [{"namespaceSelector": {}}]},
}


def leader_worker_set() -> dict[str, Any]:
    """The template of deploy/kubernetes."""
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "leaderworkerset.yaml").read_text())
    found: dict[str, Any] = next(document for document in documents if document["kind"] == "LeaderWorkerSet")
    return found


def arguments(pods: dict[str, Any], role: str) -> list[str]:
    """The command line of a role, with the variables in it that Kubernetes would put there."""
    (container,) = pods["spec"]["leaderWorkerTemplate"][f"{role}Template"]["spec"]["containers"]
    words: list[str] = container["args"]
    for name, value in LWS.items():
        words = [word.replace(f"$({name})", value) for word in words]
    return words


def check_commands(pods: dict[str, Any]) -> None:
    """The options that leader and workers are started with are such, and mean what they should."""
    leader = arguments(pods, "leader")
    assert leader[:2] == ["server.cli", "serve"]
    served = read(SERVE, leader[2:], {"ECHELON_DEVICE": "cuda:0"})
    assert (served.gather_at, served.local_stages) == (f"tcp://{LWS['LWS_LEADER_ADDRESS']}:5550", 1)
    assert (served.engine.stages, served.api.host) == (2, "0.0.0.0")
    worker = arguments(pods, "worker")
    assert worker[0] == "workers.hosts"
    joined = read(JOIN, worker[1:], {})
    assert (joined.rank_0, joined.stage) == (served.gather_at, 1)
    known = {option.variable for program in (SERVE, JOIN) for option in options_of(program.options)}
    template = pods["spec"]["leaderWorkerTemplate"]
    for role in ("leader", "worker"):
        (container,) = template[f"{role}Template"]["spec"]["containers"]
        names = {variable["name"] for variable in container["env"]}
        assert {name for name in names if name.startswith("ECHELON_")} <= known
        assert template[f"{role}Template"]["spec"]["enableServiceLinks"] is False
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"


def test_the_leader_worker_set_starts_what_there_is() -> None:
    check_commands(leader_worker_set())


def test_values_of_the_chart_fit_their_schema_and_wrong_ones_do_not() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    Draft7Validator.check_schema(schema)
    validator = Draft7Validator(schema)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    validator.validate(values)
    assert set(schema["properties"]) - {"global"} == set(values)
    for wrong in ({"stages": 0}, {"secret": {"token": "short"}}, {"options": {"MODEL": "x"}}, {"typo": 1}):
        assert not validator.is_valid(values | wrong), wrong


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """All manifests of the chart, by the `helm` program or Helm's own library; skips the test without either."""
    if shutil.which("helm"):
        command = ["helm", "template", "llm", str(CHART), "--set-json", json.dumps(values)]
        text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    else:
        helm = pytest.importorskip("helm_python", reason="neither helm nor the package helm-python-sdk is installed")
        text = "\n---\n".join(helm.Chart.load(str(CHART)).render(values, name="llm", namespace="default").values())
    return [document for document in yaml.safe_load_all(text) if document]


def test_the_chart_renders() -> None:
    by_kind = {document["kind"]: document for document in rendered(EVERYTHING)}
    assert set(by_kind) == {
        "ConfigMap", "LeaderWorkerSet", "NetworkPolicy", "PersistentVolumeClaim", "PodDisruptionBudget", "Secret",
        "Service", "ServiceMonitor",
    }  # fmt: skip
    check_commands(by_kind["LeaderWorkerSet"])
    labels = by_kind["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["metadata"]["labels"]
    assert by_kind["Service"]["spec"]["selector"].items() <= labels.items()
    assert (
        by_kind["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
        <= by_kind["Service"]["metadata"]["labels"].items()
    )
    for kind in ("NetworkPolicy", "PodDisruptionBudget"):
        spec = by_kind[kind]["spec"]
        assert (spec.get("podSelector") or spec["selector"])["matchLabels"].items() <= labels.items()
    assert set(by_kind["Secret"]["data"]) == {"token", "api-key", "hf-token"}
    boards = {path.name: json.loads(path.read_text()) for path in (DEPLOY / "grafana" / "dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in by_kind["ConfigMap"]["data"].items()} == boards


def test_what_is_switched_off_is_not_there() -> None:
    kinds = {document["kind"] for document in rendered({"secret": {"existing": "mine"}})}
    assert kinds == {"LeaderWorkerSet", "NetworkPolicy", "PodDisruptionBudget", "Service"}


@pytest.mark.parametrize("unit", ["echelon", "echelon-join"])
def test_units_start_commands_that_exist(unit: str) -> None:
    text = (DEPLOY / "systemd" / f"{unit}.service").read_text()
    (command,) = (line.removeprefix("ExecStart=") for line in text.splitlines() if line.startswith("ExecStart="))
    program, verb = shlex.split(command)
    assert program == "/opt/echelon/bin/echelon"
    options = options_of((SERVE if verb == "serve" else JOIN).options)
    named = [line.split("=")[0].strip("# ") for line in text.splitlines() if line.startswith("#   ECHELON_")]
    assert named
    assert set(named) <= {option.variable for option in options}
