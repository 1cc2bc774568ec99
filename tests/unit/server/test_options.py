"""From flags to an engine configuration."""

from pathlib import Path
from typing import Any

import pytest

from server.launcher.prepared import check_flags
from server.launcher.resolve import (
    ModelSize,
    choose_drafter,
    local_endpoints,
    network_endpoints,
    plan_engine,
    plan_over_network,
)
from workers.shared.config import DrafterConfig, EngineConfig, load_config, save_config
from workers.shared.errors import ConfigError
from workers.shared.options.engine import DrafterOptions, EngineOptions

SIZE = ModelSize("model", Path("/models/m"), [10] * 30, 80, 4096)


def plan(**options: Any) -> EngineConfig:
    stages = len(options.get("split", ())) or options.get("stages", 2)
    return plan_engine(EngineOptions(**options), SIZE, local_endpoints(Path("/run/e"), stages, 1))


def test_defaults_balance_two_stages_with_the_head_counted() -> None:
    config = plan()
    assert config.split == (19, 11)
    assert (config.transport, config.dtype, config.max_model_len) == ("unix", "float32", 4096)
    assert [list(config.layers(i))[:1] for i in range(2)] == [[0], [19]]


def test_cuda_takes_one_device_a_stage_over_nccl_and_one_device_in_process() -> None:
    config = plan(stages=3, device=("cuda",))
    assert (config.transport, config.dtype, config.devices) == ("nccl", "bfloat16", ("cuda:0", "cuda:1", "cuda:2"))
    shared = plan(stages=3, device=("cuda:1",))
    assert (shared.transport, [shared.device(i) for i in range(3)]) == ("inprocess", ["cuda:1"] * 3)
    assert plan(stages=3, device=("cuda:0", "cuda:0", "cuda:1")).transport == "unix", "nothing faster works"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 40}, "--stages"),
        ({"split": (10, 10)}, "--split"),
        ({"split": (10, 20), "stages": 3}, "--split 10,20 has 2 stages, but --stages is 3"),
        ({"device": ("tpu",)}, "--device"),
        ({"max_model_len": 5000}, "--max-model-len must be 2..4096"),
        ({"max_model_len": 1}, "--max-model-len"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(**options)


def test_contradictions_are_found_before_the_model_is_there() -> None:
    check_flags(EngineOptions(stages=7, max_model_len=100_000), "ORG/UNKNOWN")
    rounds = DrafterOptions(num_speculative_tokens=2)
    with pytest.raises(ConfigError, match="--delta 1"):
        check_flags(EngineOptions(delta=1, drafter=rounds), "ORG/UNKNOWN")
    with pytest.raises(ConfigError, match="--drafter pdm needs --draft-module"):
        check_flags(EngineOptions(drafter=DrafterOptions(name="pdm")), "ORG/UNKNOWN")


def drafter(shipped: Path | None = None, **options: Any) -> DrafterConfig:
    model = ModelSize("model", Path("/models/m"), [1], 1, 64, shipped)
    return choose_drafter(DrafterOptions(**options), model, "cpu")


def test_the_default_drafter_uses_a_module_where_there_is_one(tmp_path: Path) -> None:
    assert drafter().name == "ngram"
    assert drafter(tmp_path).name == drafter(module=str(tmp_path)).name == "pdm+ngram"
    assert (drafter(tmp_path).module, drafter(tmp_path).module_target) == (str(tmp_path), "model")
    assert drafter(tmp_path, name="ngram").module is None
    assert drafter(tmp_path, num_speculative_tokens=4).name == "ngram", "no hidden states between two rounds"


def test_a_draft_model_is_reason_enough_to_use_it() -> None:
    chosen = drafter(model="ORG/SMALL", num_speculative_tokens=4)
    assert (chosen.name, chosen.draft_model, chosen.num_speculative_tokens) == ("model", "ORG/SMALL", 4)
    assert chosen.module is None


def test_a_cascade_is_reason_enough_to_use_it_on_devices_of_its_own() -> None:
    chosen = drafter(cascade=("ORG/SMALL", "ORG/MIDDLE"), cascade_device=("cuda:1", "cuda:2"))
    assert (chosen.name, chosen.cascade) == ("cascade", ("ORG/SMALL", "ORG/MIDDLE"))
    assert [chosen.cascade_device(model) for model in (0, 1)] == ["cuda:1", "cuda:2"]
    assert drafter(cascade=("a", "b"), device="cuda:3").cascade_device(1) == "cuda:3"
    options = EngineOptions(stages=1, drafter=DrafterOptions(cascade=("ORG/SMALL",)))
    with pytest.raises(ConfigError, match="nothing in flight to draft for: give --tokens-per-frame M"):
        check_flags(options, "ORG/UNKNOWN")


def test_what_a_drafter_is_given_reaches_it(tmp_path: Path) -> None:
    made = drafter(name="ngram", ngram_max=4, ngram_min=2, threads=3)
    assert (made.ngram_max, made.ngram_min, made.threads) == (4, 2, 3)
    scripted = drafter(name="scripted", script="runs.json")
    assert (scripted.script, scripted.always) == (str(Path("runs.json").absolute()), False)
    assert drafter(name="scripted", scripted_acceptance=0.5).always  # a rehearsal is not judged


def test_a_drafter_of_another_host_does_not_take_the_stages_gpu(tmp_path: Path) -> None:
    options = EngineOptions(device=("cuda:0",), drafter=DrafterOptions(module=str(tmp_path)))
    assert plan_over_network(options, SIZE, ("engine", "a", "b"), 5550).drafter.device == "cpu"
    assert plan_over_network(options, SIZE, ("a", "a", "b"), 5550).drafter.device == "cuda:0"


def test_a_configuration_survives_its_file(tmp_path: Path) -> None:
    config = plan(stages=3)
    save_config(config, tmp_path / "engine.json")
    assert load_config(tmp_path / "engine.json") == config


def test_a_toml_configuration_is_read_and_a_wrong_field_named(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(
        'model = "/m"\nsplit = [1, 2]\nmax_model_len = 64\n[endpoints]\nbus = "tcp://rank0:1"\nresults = "tcp://rank0:2"\n'
        'control = ["tcp://rank0:3", "tcp://rank0:4"]\ndata = ["", "tcp://stage1:5"]\nlisten = "0.0.0.0"\n'
    )
    assert load_config(path).stages == 2
    path.write_text(path.read_text().replace("split = [1, 2]", 'split = "two"'))
    with pytest.raises(ConfigError, match=r"split"):
        load_config(path)


def test_processes_on_several_hosts_share_no_port_and_meet_where_they_listen() -> None:
    config = plan_over_network(EngineOptions(stages=2, device=("cuda:0",)), SIZE, ("engine", "a", "b"), 5550)
    ends = config.endpoints
    assert (config.transport, config.devices, ends.listen) == ("nccl", ("cuda:0",), "0.0.0.0")
    assert all(address.startswith("tcp://engine:") for address in (ends.bus, ends.results, *ends.control))
    assert [address.rsplit(":", 1)[0] for address in (*ends.data, ends.rendezvous)] == ["tcp://a", "tcp://b", "tcp://a"]
    used = [ends.bus, ends.results, ends.rendezvous, *ends.control, *ends.data]
    assert len({address.rsplit(":", 1)[1] for address in used}) == len(used)


def test_ip_addresses_listen_on_themselves_alone() -> None:
    assert network_endpoints(["10.0.0.1", "10.0.0.1", "10.0.0.2"], 2, 5550).listen is None
    assert network_endpoints(["10.0.0.1", "10.0.0.1", "gpu-box"], 2, 5550).listen == "0.0.0.0"
    six = network_endpoints(["fd00::1", "[fd00::1]", "fd00::2"], 2, 5550)
    assert (six.bus, six.data[1], six.listen) == ("tcp://[fd00::1]:5550", "tcp://[fd00::2]:5556", None)
    assert network_endpoints(["fd00::1", "fd00::1", "gpu-box"], 2, 5550).listen == "[::]"


@pytest.mark.parametrize(
    ("hosts", "port", "transport", "message"),
    [
        (["engine", "a"], 5550, "auto", "--hosts needs 3 names"),
        (["engine", "a", ""], 5550, "auto", "--hosts needs 3 names"),
        (["engine", "a", "b"], 65530, "auto", "--base-port 65530"),
        (["engine", "a", "b"], 5550, "inprocess", "--transport inprocess"),
    ],
)
def test_hosts_and_ports_that_cannot_work_are_refused(
    hosts: list[str], port: int, transport: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_over_network(EngineOptions(stages=2, transport=transport), SIZE, hosts, port)
