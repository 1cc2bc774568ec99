"""The memory estimate."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.shared.errors import ConfigError
from workers.shared.memory import Need, available_host_bytes, check_fits, kv_bytes_per_position

LLAMA = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


def test_kv_bytes_per_position() -> None:
    assert kv_bytes_per_position(LLAMA, layers=10, itemsize=2) == 2 * 10 * 8 * 128 * 2
    assert kv_bytes_per_position({**LLAMA, "head_dim": 256}, 1, 2) == 2 * 8 * 256 * 2
    assert kv_bytes_per_position({**LLAMA, "num_key_value_heads": None}, 1, 2) == 2 * 32 * 128 * 2
    assert kv_bytes_per_position(LLAMA, layers=0, itemsize=2) == 0


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
    assert 1 << 20 < available_host_bytes() < 1 << 50


def test_slots_that_share_positions_take_no_more_than_those() -> None:
    shared, own = Need("stage 0", "cpu", 100, 10, slots=4, pool=50), Need("draft model", "cpu", 100, 10, slots=4)
    assert (shared.total(30), own.total(30)) == (100 + 500, 100 + 4 * 300)
    with pytest.raises(ConfigError, match="--max-model-len 1 or less"):
        check_fits([shared, own], 30, 800)
    with pytest.raises(ConfigError, match="fewer --max-total-tokens"):
        check_fits([shared], 30, 400)
