"""The files of deploy/: they agree with each other and with the code. Nothing is built or started here."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from server.engine.rates import EngineFigures
from server.launcher.options import PLAN, PlanOptions
from server.launcher.resolve import ModelSize, network_endpoints, plan_over_network
from server.metrics.devices import DeviceCollector
from server.metrics.engine import engine_metrics
from server.metrics.nvml import Device, DeviceReader
from server.metrics.requests import RequestMetrics
from tests.boards.grafana import BOARDS, board, written
from tests.stub_engine import CHOICE, INFO
from workers.shared.config import EngineConfig
from workers.shared.messages import EngineStats, StageTimings, Status
from workers.shared.options.declared import options_of
from workers.shared.options.sources import read

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
GROUP = ("engine", "stage-0", "stage-1")
DEFAULT_MODEL_LAYERS = 30


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found


def planned(**environment: str) -> EngineConfig:
    """What `prepare` writes for a model like the default one."""
    options = read(PLAN, ["--config", str(DEPLOY / "echelon.toml")], environment)
    model = ModelSize("model", Path("/models/m"), [10] * DEFAULT_MODEL_LAYERS, 80, 8192)
    return plan_over_network(options.engine, model, options.hosts, options.base_port)


def test_the_configuration_fits_the_services() -> None:
    for environment, transport, device in (({}, "zmq", "cpu"), ({"ECHELON_DEVICE": "cuda:0"}, "nccl", "cuda:0")):
        config = planned(**environment)
        assert config.endpoints == network_endpoints(GROUP, config.stages, 5550)
        # A container sees its own GPU only, as the first one; rank 0's has none.
        assert (config.transport, config.devices, config.drafter.device) == (transport, (device,), "cpu")


def test_all_services_read_what_prepare_writes(services: dict[str, Any]) -> None:
    command = services["prepare"]["command"]
    out = command[command.index("--out") + 1]
    for name in GROUP:
        assert services[name]["command"][-2:] == ["--config", f"{out}/engine.json"]
    assert f'"--settings", "{out}/server.json"' in (ROOT / "Dockerfile").read_text()
    assert all("models:/models:ro" in services[name]["volumes"] for name in (*GROUP, "api"))


def test_a_calibration_is_found_again_by_the_next_container(services: dict[str, Any]) -> None:
    engine = services["engine"]
    assert f"state:{engine['environment']['ECHELON_CACHE']}" in engine["volumes"]
    assert engine["hostname"] == "engine", "its key names the host, and a container's own name is drawn by chance"


def test_every_stage_has_a_container_with_a_gpu_of_its_own(services: dict[str, Any]) -> None:
    gpus = []
    with_gpus = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text())["services"]
    assert with_gpus.pop("prepare") == {"environment": {"ECHELON_DEVICE": "cuda:0"}}
    assert with_gpus.keys() == {"api"} | {f"stage-{stage}" for stage in range(planned().stages)}
    for stage in range(planned().stages):
        assert services[f"stage-{stage}"]["command"][:3] == ["workers", "--stage", str(stage)]
        assert "deploy" not in services[f"stage-{stage}"]
        (device,) = with_gpus[f"stage-{stage}"]["deploy"]["resources"]["reservations"]["devices"]
        gpus += device["device_ids"]
    assert len(set(gpus)) == len(gpus)


def test_whoever_leaves_a_group_is_started_again_even_after_a_clean_exit(services: dict[str, Any]) -> None:
    assert {services[name]["restart"] for name in (*GROUP, "api")} == {"unless-stopped"}


def test_the_bus_cannot_be_reached_from_outside(services: dict[str, Any]) -> None:
    networks = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["networks"]
    assert networks["bus"] == {"internal": True}
    for name in GROUP:
        assert services[name]["networks"] == ["bus"]
        assert "ports" not in services[name]
    assert {name for name, service in services.items() if "bus" in service["networks"]} == {*GROUP, "api"}


def test_ports_are_published_on_loopback_unless_the_operator_says_otherwise(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert len(published) == 3
    assert all(port.startswith(("127.0.0.1:", "${API_ADDRESS:-127.0.0.1}:")) for port in published)


def test_variables_of_the_containers_are_options(services: dict[str, Any]) -> None:
    options = {option.variable for option in options_of(PlanOptions)}
    given = {name for name in services["prepare"]["environment"] if name.startswith("ECHELON_")}
    assert given <= options


@pytest.mark.parametrize("files", [("compose.yaml",), ("compose.yaml", "compose.gpu.yaml")], ids="+".join)
def test_docker_compose_accepts_the_files(files: tuple[str, ...]) -> None:
    command = compose_command()
    chosen = [word for file in files for word in ("-f", str(DEPLOY / file))]
    done = subprocess.run([*command, *chosen, "config"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    resolved = yaml.safe_load(done.stdout)["services"]
    assert ("deploy" in resolved["stage-0"]) == (len(files) == 2)


def compose_command() -> list[str]:
    """The installed Docker Compose, as a plugin or as the older program; skips the test without one."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        if subprocess.run([*command, "version"], capture_output=True, timeout=300, check=False).returncode == 0:
            return command
    pytest.skip("Docker Compose is not installed")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is not installed")
def test_prometheus_accepts_its_configuration() -> None:
    command = ["promtool", "check", "config", str(DEPLOY / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is not installed")
def test_rules_do_what_they_say(tmp_path: Path) -> None:
    rules = DEPLOY / "rules.yml"
    cases = tmp_path / "rules.test.yml"
    cases.write_text((Path(__file__).parent / "prometheus_rules.test.yml").read_text().replace("RULES", str(rules)))
    for command in (["check", "rules", str(rules)], ["test", "rules", str(cases)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", BOARDS)
def test_dashboards_are_up_to_date(name: str) -> None:
    assert (DEPLOY / "grafana" / "dashboards" / f"{name}.json").read_text() == written(name), "run `make boards`"
    assert {path.stem for path in (DEPLOY / "grafana" / "dashboards").iterdir()} == set(BOARDS)


def test_every_metric_on_dashboards_and_in_rules_is_one_that_the_server_has() -> None:
    names = served_metrics()
    rules = [rule for group in yaml.safe_load((DEPLOY / "rules.yml").read_text())["groups"] for rule in group["rules"]]
    names |= {rule["record"] for rule in rules if "record" in rule} | {"up"}
    expressions = [*board_expressions(), *(rule["expr"] for rule in rules)]
    for expression in expressions:
        used = re.findall(r"echelon:[\w:]+|\bup\b", expression)
        assert used, expression
        assert set(used) <= names, expression


def test_dashboards_select_phases_that_exist() -> None:
    named = {phase for text in board_expressions() for phases in re.findall(r'phase=~?"([^"]+)"', text)
             for phase in phases.split("|")}  # fmt: skip
    assert named == {"idle", "receive", "forward", "sample", "emulate", "send"}


def board_expressions() -> list[str]:
    """All PromQL of Grafana's dashboards."""
    panels = [panel for name in BOARDS for panel in board(name)["panels"]]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def served_metrics() -> set[str]:
    """Names of all series that /metrics has after a pipeline was full."""
    metrics = RequestMetrics()
    metrics.finished.labels("stop").inc()
    metrics.refused.labels("400").inc()
    figures = EngineFigures()
    for number in range(2):
        timings = StageTimings(frames=number, forward_ns=number)
        status = Status(
            number, INFO, 0, 0, EngineStats(full_cycles=number), CHOICE, [timings] * INFO.stages, credits={"draft": 1}
        )
        figures.update(status)
    devices = DeviceCollector(DeviceReader(None))
    devices.show([Device(index=0, name="card", uuid="", utilization=0, memory_used=0, temperature=0, power=0, sent=0)])
    families = [*metrics.registry.collect(), *engine_metrics(figures, status), *devices.collect()]
    always = {f"echelon:{name}" for name in ("engine_up", "open_sequences", "resumed_sequences_total")}  # of the client
    return {sample.name for family in families for sample in family.samples} | always
