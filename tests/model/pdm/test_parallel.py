"""Two processes under `torchrun` train one module: their gradients are averaged."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from speculation.training.provenance import command_line

SCRIPT = """
import sys
import torch
from speculation.training.parallel import World

device = torch.device("cpu")
world = World.join(device)
weight = torch.nn.Parameter(torch.zeros(2))
other = torch.nn.Parameter(torch.zeros(1))
weight.grad = torch.tensor([1.0, 10.0]) * (world.rank + 1)
if world.rank == 0:
    other.grad = torch.ones(1)
world.average_gradients([weight, other])
stop = world.any(world.rank == 1, device)
if world.rank == 0:
    torch.save({"weight": weight.grad, "other": other.grad, "stop": stop}, sys.argv[1])
world.wait()
world.leave()
"""


@pytest.mark.timeout(120)
def test_gradients_are_averaged_and_all_stop_together(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    subprocess.run([*command, str(tmp_path / "result.pt")], check=True, timeout=100, cwd=Path(__file__).parents[3])
    result = torch.load(tmp_path / "result.pt", weights_only=True)
    assert result["weight"].tolist() == [1.5, 15.0]
    assert result["other"].tolist() == [0.5]
    assert result["stop"] is True


def test_the_recorded_command_has_no_folders() -> None:
    assert command_line("m", ["/some/where/model", "--steps", "3"]) == "python -m m model --steps 3"
