"""From flags to an engine configuration."""

from pathlib import Path
from typing import Any

import pytest

from server.launcher.options import (
    DrafterOptions,
    EngineOptions,
    ModelSize,
    choose_devices,
    choose_drafter_config,
    local_endpoints,
    network_endpoints,
    plan_engine,
    plan_over_network,
)
from workers.shared.config import DrafterConfig, EngineConfig, TransportName, load_config, save_config
from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError

SIZE = ModelSize(Path("/models/m"), [10] * 30, 80, 4096)


def plan(options: EngineOptions) -> EngineConfig:
    stages = len(options.split.split(",")) if options.split else options.stages or 2
    return plan_engine(options, SIZE, local_endpoints(Path("/run/e"), stages, 1))


def test_defaults_balance_two_stages_with_the_head_counted() -> None:
    config = plan(EngineOptions())
    assert config.split == (19, 11)
    assert (config.transport, config.dtype, config.max_model_len) == ("zmq", "float32", 4096)
    assert [list(config.layers(i))[:1] for i in range(2)] == [[0], [19]]


def test_cuda_takes_one_device_a_stage_over_nccl_and_one_device_in_process() -> None:
    config = plan(EngineOptions(stages=3, device="cuda"))
    assert (config.transport, config.dtype, config.devices) == ("nccl", "bfloat16", ("cuda:0", "cuda:1", "cuda:2"))
    shared = plan(EngineOptions(stages=3, device="cuda:1"))
    assert (shared.transport, [shared.device(i) for i in range(3)]) == ("inprocess", ["cuda:1"] * 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (EngineOptions(stages=40), "--stages"),
        (EngineOptions(split="10,10"), "--split"),
        (EngineOptions(split="10,20", stages=3), "--split 10,20 has 2 stages, but --stages is 3"),
        (EngineOptions(device="tpu"), "--device"),
        (EngineOptions(device="cuda:0,cuda:1,cuda:2"), "3 devices for 2 stages"),
        (EngineOptions(device="cpu,cuda:0"), "cannot be mixed"),
        (EngineOptions(transport="nccl"), "--transport nccl needs --device cuda"),
        (EngineOptions(max_model_len=5000), "--max-model-len must be 2..4096"),
        (EngineOptions(max_model_len=1), "--max-model-len"),
        (EngineOptions(prefill_chunk=0), "--prefill-chunk"),
        (EngineOptions(delta=-1), "--delta"),
        (EngineOptions(sequences=0), "--sequences"),
        (EngineOptions(threads=0), "--threads"),
        (EngineOptions(emulate=Emulation(link_ms=-1)), "--emulate-link-ms"),
        (EngineOptions(stall_timeout=0), "--stall-timeout"),
        (EngineOptions(hollow_stages=True, drafter=DrafterConfig("ngram")), "--hollow-stages"),
        (EngineOptions(hollow_stages=True, device="cuda", drafter=DrafterConfig("none")), "--hollow-stages"),
    ],
)
def test_what_is_wrong_is_named(options: EngineOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(options)


def drafter(shipped: Path | None = None, **options: Any) -> DrafterConfig:
    return choose_drafter_config(DrafterOptions(**options), "model", shipped, "cpu")


def test_the_default_drafter_uses_a_module_where_there_is_one(tmp_path: Path) -> None:
    assert drafter().name == "ngram"
    assert drafter(tmp_path).name == drafter(module=tmp_path).name == "pdm+ngram"
    assert (drafter(tmp_path).module, drafter(tmp_path).module_target) == (str(tmp_path), "model")
    assert drafter(tmp_path, name="ngram").module is None
    assert drafter(tmp_path, num_speculative_tokens=4).name == "ngram", "no hidden states between two rounds"


def test_a_draft_model_is_reason_enough_to_use_it(tmp_path: Path) -> None:
    chosen = drafter(tmp_path, model="ORG/SMALL", num_speculative_tokens=4)
    assert (chosen.name, chosen.draft_model, chosen.num_speculative_tokens) == ("model", "ORG/SMALL", 4)
    assert chosen.module is None


def test_drafter_options_are_checked_against_each_other(tmp_path: Path) -> None:
    assert drafter(name="scripted", acceptance=0.8).scripted_acceptance == 0.8
    for options, message in (
        ({"name": "ngram", "script": Path("x")}, "--script is for"),
        ({"name": "scripted"}, "needs"),
        ({"name": "scripted", "acceptance": 1.5}, "probability"),
        ({"ngram_min": 7}, "--ngram-min"),
        ({"threads": 0}, "--draft-threads"),
        ({"name": "pdm"}, "--drafter pdm needs --draft-module PATH: no module comes with Echelon for model"),
        ({"name": "none", "module": tmp_path}, "--draft-module is for"),
        ({"name": "model"}, "--drafter model and --draft-model MODEL belong together"),
        ({"name": "ngram", "model": "ORG/SMALL"}, "--drafter model and --draft-model MODEL belong together"),
        ({"num_speculative_tokens": -1}, "--num-speculative-tokens"),
    ):
        with pytest.raises(ConfigError, match=message):
            drafter(**options)


def test_devices_may_be_listed_in_any_order() -> None:
    assert choose_devices("cuda:1, cuda:0", 2, "auto") == ("cuda:1", "cuda:0")


def test_a_configuration_survives_its_file(tmp_path: Path) -> None:
    config = plan(EngineOptions(stages=3))
    save_config(config, tmp_path / "engine.json")
    assert load_config(tmp_path / "engine.json") == config


def test_a_toml_configuration_is_read_and_a_wrong_field_named(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(
        'model = "/m"\nsplit = [1, 2]\n[endpoints]\nbus = "tcp://rank0:1"\nresults = "tcp://rank0:2"\n'
        'control = ["tcp://rank0:3", "tcp://rank0:4"]\ndata = ["", "tcp://stage1:5"]\nlisten = "0.0.0.0"\n'
    )
    assert load_config(path).stages == 2
    path.write_text(path.read_text().replace("split = [1, 2]", 'split = "two"'))
    with pytest.raises(ConfigError, match=r"split"):
        load_config(path)


def test_processes_on_several_hosts_share_no_port_and_meet_where_they_listen() -> None:
    config = plan_over_network(EngineOptions(stages=2, device="cuda:0"), SIZE, ("engine", "a", "b"), 5550)
    ends = config.endpoints
    assert (config.transport, config.devices, ends.listen) == ("nccl", ("cuda:0",), "0.0.0.0")
    assert all(address.startswith("tcp://engine:") for address in (ends.bus, ends.results, *ends.control))
    assert [address.rsplit(":", 1)[0] for address in (*ends.data, ends.rendezvous)] == ["tcp://a", "tcp://b", "tcp://a"]
    used = [ends.bus, ends.results, ends.rendezvous, *ends.control, *ends.data]
    assert len({address.rsplit(":", 1)[1] for address in used}) == len(used)


def test_ip_addresses_listen_on_themselves_alone() -> None:
    assert network_endpoints(["10.0.0.1", "10.0.0.1", "10.0.0.2"], 2, 5550).listen is None
    assert network_endpoints(["10.0.0.1", "10.0.0.1", "gpu-box"], 2, 5550).listen == "0.0.0.0"


@pytest.mark.parametrize(
    ("hosts", "port", "transport", "message"),
    [
        (["engine", "a"], 5550, "auto", "--hosts needs 3 names"),
        (["engine", "a", ""], 5550, "auto", "--hosts needs 3 names"),
        (["engine", "a", "b"], 65530, "auto", "--port 65530"),
        (["engine", "a", "b"], 5550, "inprocess", "--transport inprocess"),
    ],
)
def test_hosts_and_ports_that_cannot_work_are_refused(
    hosts: list[str], port: int, transport: TransportName, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_over_network(EngineOptions(stages=2, transport=transport), SIZE, hosts, port)
