"""What launchers such as torchrun and Slurm say of a process."""

import pytest

from workers.shared.errors import ConfigError
from workers.shared.hosts.place import ProcessPlace, read_place

TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_PROCID": "1", "SLURM_NTASKS": "3", "SLURM_LOCALID": "1", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
}  # fmt: skip


def test_both_languages_are_understood() -> None:
    assert read_place(TORCHRUN) == ProcessPlace(2, 4, 0, "node0")
    assert read_place(SLURM) == ProcessPlace(1, 3, 1, "10.0.0.1")
    assert read_place({}) == ProcessPlace(None, None, None, None)


def test_what_torchrun_says_comes_before_the_allocation_it_runs_in() -> None:
    assert read_place(SLURM | TORCHRUN) == ProcessPlace(2, 4, 0, "node0")


@pytest.mark.parametrize("wrong", [{"RANK": "-1"}, {"RANK": "two"}, {"RANK": "4", "WORLD_SIZE": "4"}])
def test_nonsense_is_refused_by_name(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="RANK="):
        read_place(wrong)
