"""Two processes train one module: their gradients are averaged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from speculation.training.parallel import World
from speculation.training.provenance import command_line
from workers.shared.processes.free_port import free_port

OTHER = """
from tests.model.pdm.test_parallel import step

step()
"""


def step() -> tuple[list[list[float]], bool]:
    """What one process of two does: gradients of its own, and the wish of the second to stop."""
    world = World.join(torch.device("cpu"))
    weight, other = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.tensor([1.0, 10.0]) * (world.rank + 1)
    if world.rank == 0:
        other.grad = torch.ones(1)
    world.average_gradients([weight, other])
    stop = world.any(world.rank == 1, torch.device("cpu"))
    world.wait()
    world.leave()
    assert other.grad is not None
    return [weight.grad.tolist(), other.grad.tolist()], stop


@pytest.mark.timeout(240)
def test_gradients_are_averaged_and_all_stop_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `torchrun`, whose environment this is; the first process is the test's own."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    environment = {**os.environ, **common, "RANK": "1"}
    with subprocess.Popen([sys.executable, "-c", OTHER], env=environment, cwd=Path(__file__).parents[3]) as second:
        try:
            for name, value in {**common, "RANK": "0"}.items():
                monkeypatch.setenv(name, value)
            gradients, stop = step()
            assert second.wait(timeout=200) == 0
        finally:
            second.kill()
    assert gradients == [[1.5, 15.0], [0.5]]
    assert stop


def test_the_recorded_command_has_no_folders() -> None:
    assert command_line("m", ["/some/where/model", "--steps", "3"]) == "python -m m model --steps 3"
