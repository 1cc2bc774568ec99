"""`echelon plan --measure`: from what was measured to the options that are planned with."""

from pathlib import Path

import pytest

from server.launcher import measured
from server.launcher.measured import measured_options
from server.launcher.resolve import ModelSize, plan_over_network
from workers.decisions.split import DeviceTimes
from workers.shared.options.engine import DrafterOptions, EngineOptions

TIMES = {
    "cuda:0": DeviceTimes(2.0, 4.0, 0.1, draft_ms=9.0),
    "cuda:1": DeviceTimes(1.0, 2.0, 0.1, draft_ms=4.0),
}
HOSTS = ("a", "a", "a")


def planned(monkeypatch: pytest.MonkeyPatch, options: EngineOptions, module: Path | None) -> tuple[EngineOptions, str]:
    monkeypatch.setattr(measured, "_measure", lambda config: TIMES)
    model = ModelSize("m", Path("/nowhere"), [10] * 12, 20, 128, module)
    options, told = measured_options(options, model, plan_over_network(options, model, HOSTS, 5550))
    assert plan_over_network(options, model, HOSTS, 5550).split == options.split
    return options, "\n".join(told)


def test_a_slow_device_gets_fewer_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    given = EngineOptions(stages=2, device=("cuda:0", "cuda:1"))
    options, told = planned(monkeypatch, given, None)
    assert options.split == (4, 8)
    assert "measured on cuda:0: a layer 2.000 ms, head 4.000 ms" in told
    assert "--split 4,8: 8.10, 10.00 ms" in told
    assert "draft module" not in told


def test_the_module_goes_where_it_delays_least_unless_a_device_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = EngineOptions(stages=2, device=("cuda:0", "cuda:1"))
    options, told = planned(monkeypatch, given, tmp_path)
    assert options.drafter.device == "cuda:1"
    assert "shares cuda:1 with stage 1: 2 devices, not 3, and about 4.00 ms of that stage's time" in told
    given = EngineOptions(stages=2, device=("cuda:0", "cuda:1"), drafter=DrafterOptions(device="cuda:0"))
    options, told = planned(monkeypatch, given, tmp_path)
    assert options.drafter.device == "cuda:0"
    assert "shares" not in told
