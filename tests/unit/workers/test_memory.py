"""The memory estimate."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.model.memory import StageMemory, available_host_bytes, check_fits, kv_bytes_per_position
from workers.shared.errors import ConfigError

LLAMA = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


def test_kv_bytes_per_position() -> None:
    assert kv_bytes_per_position(LLAMA, layers=10, sequences=3, itemsize=2) == 2 * 10 * 3 * 8 * 128 * 2
    assert kv_bytes_per_position({**LLAMA, "head_dim": 256}, 1, 1, 2) == 2 * 8 * 256 * 2
    assert kv_bytes_per_position({**LLAMA, "num_key_value_heads": None}, 1, 1, 2) == 2 * 32 * 128 * 2
    assert kv_bytes_per_position(LLAMA, layers=0, sequences=1, itemsize=2) == 0


@given(st.integers(0, 10**12), st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**12))
def test_what_is_said_to_fit_fits(weights: int, per_position: int, max_len: int, available: int) -> None:
    need = StageMemory(weights, per_position)
    try:
        check_fits(need, max_len, available, "stage 1")
    except ConfigError as error:
        assert need.total(max_len) > available * 0.94
        if match := re.search(r"use --max-model-len (\d+) or less", str(error)):
            longest = int(match[1])
            assert 1 <= longest < max_len
            check_fits(need, longest, available, "stage 1")
            with pytest.raises(ConfigError):
                check_fits(need, longest + 1, available, "stage 1")
        else:
            with pytest.raises(ConfigError, match="weights alone do not fit"):
                check_fits(need, 1, available, "stage 1")
    else:
        assert need.total(max_len) <= available


def test_host_memory_is_plausible() -> None:
    assert 1 << 20 < available_host_bytes() < 1 << 50
