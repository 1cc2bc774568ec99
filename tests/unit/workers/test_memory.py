"""The memory estimate."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import workers.shared.memory
from tests.unit.workers.test_model_bytes import write_safetensors
from workers.shared.config import Endpoints, EngineConfig
from workers.shared.errors import ConfigError
from workers.shared.memory import (
    Need,
    available_host_bytes,
    check_devices,
    check_fits,
    free_bytes,
    host_bytes,
    needs_of,
    neighbours,
)
from workers.shared.model_files.layers import kv_bytes_per_position
from workers.shared.packed.inventory import Inventory, read_inventory

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 10,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}


def write_model(folder: Path) -> Path:
    """Four layers of five bytes."""
    write_safetensors(
        folder / "model.safetensors",
        {
            "model.embed_tokens.weight": 1000,
            "model.norm.weight": 2,
            **{f"model.layers.{layer}.mlp.up_proj.weight": 5 for layer in range(4)},
        },
    )
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def test_kv_bytes_per_position() -> None:
    assert kv_bytes_per_position(LLAMA, layers=range(10), sequences=3, itemsize=2) == 2 * 10 * 3 * 8 * 128 * 2
    assert kv_bytes_per_position({**LLAMA, "head_dim": 256}, range(1), 1, 2) == 2 * 8 * 256 * 2
    assert kv_bytes_per_position({**LLAMA, "num_key_value_heads": None}, range(1), 1, 2) == 2 * 32 * 128 * 2
    assert kv_bytes_per_position(LLAMA, layers=range(0), sequences=1, itemsize=2) == 0


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**6)), min_size=1, max_size=4),
    st.integers(1, 10**6),
    st.integers(0, 10**12),
)
def test_what_is_said_to_fit_fits(parts: list[tuple[int, int]], max_len: int, available: int) -> None:
    needs = [Need(f"stage {number}", "cpu", *part) for number, part in enumerate(parts)]
    total = sum(weights + per_position * max_len for weights, per_position in parts)
    try:
        check_fits(needs, max_len, available)
    except ConfigError as error:
        assert total > available * 0.94
        if match := re.search(r"use --max-model-len (\d+) or less", str(error)):
            longest = int(match[1])
            assert 1 <= longest < max_len
            check_fits(needs, longest, available)
            with pytest.raises(ConfigError):
                check_fits(needs, longest + 1, available)
        else:
            with pytest.raises(ConfigError, match="weights alone do not fit"):
                check_fits(needs, 1, available)
    else:
        assert total <= available


def test_host_memory_is_plausible() -> None:
    assert 1 << 20 < available_host_bytes() <= host_bytes() < 1 << 50
    assert free_bytes("cpu") is not None


def test_parts_on_one_card_have_one_budget_and_a_card_that_does_not_tell_is_left_to_its_processes() -> None:
    needs = [Need(f"stage {number}", f"cuda:{number % 2}", 600, 0) for number in range(3)]
    free: dict[str, int | None] = {"cuda:0": 1300, "cuda:1": 700}
    check_devices(needs, 64, free.get)
    free["cuda:0"] = 1000
    with pytest.raises(ConfigError, match="stage 0 and stage 2 on cuda:0 need"):
        check_devices(needs, 64, free.get)
    free["cuda:0"] = None
    check_devices(needs, 64, free.get)


def test_headers_are_read_once_for_all_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def count(folder: Path, *rest: object) -> Inventory:
        read.append(folder)
        return read_inventory(folder)

    monkeypatch.setattr(workers.shared.memory, "read_inventory", count)
    model = write_model(tmp_path)
    endpoints = Endpoints("ipc://a", "ipc://b", ("ipc://c",) * 4, ("ipc://d",) * 4)
    needs = needs_of(EngineConfig(str(model), (1, 1, 1, 1), endpoints, 64))
    assert [need.who for need in needs] == ["stage 0", "stage 1", "stage 2", "stage 3"]
    assert needs[1].weight_bytes == 4 * 5
    assert read == [model]


def test_neighbours_are_the_stages_on_the_same_device_of_the_same_host(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    data = ("tcp://a:1", "tcp://a:2", "tcp://b:3", "tcp://a:4")
    endpoints = Endpoints("tcp://a:5", "tcp://a:6", data, data)
    devices = ("cuda:0", "cuda:0", "cuda:0", "cuda:1")
    config = EngineConfig(str(model), (1, 1, 1, 1), endpoints, 64, devices=devices)
    assert [[need.who for need in neighbours(config, stage)] for stage in range(4)] == [
        ["stage 0", "stage 1"],
        ["stage 0", "stage 1"],
        ["stage 2"],
        ["stage 3"],
    ]


def test_slots_that_share_positions_take_no_more_than_those() -> None:
    shared, own = Need("stage 0", "cpu", 100, 10, slots=4, pool=50), Need("draft model", "cpu", 100, 10, slots=4)
    assert (shared.total(30), own.total(30)) == (100 + 500, 100 + 4 * 300)
    with pytest.raises(ConfigError, match="--max-model-len 1 or less"):
        check_fits([shared, own], 30, 800)
    with pytest.raises(ConfigError, match="fewer --max-total-tokens"):
        check_fits([shared], 30, 400)
