"""Quality of the counter-based Gumbel noise."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.sampling.gumbel_noise import gumbel

CPU = torch.device("cpu")
WORD = (1 << 64) - 1


def reference(seed: int, position: int, token: int) -> float:
    """The same noise by plain integer arithmetic."""

    def mix(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
        return word ^ (word >> 31)

    step = 0x9E3779B97F4A7C15
    key = mix((mix((seed + step) & WORD) + position * step + step) & WORD)
    word = mix((key + token * step) & WORD)
    return -math.log(-math.log(((word >> 12) + 0.5) / 2**52))


@given(st.integers(-(2**63), 2**64), st.integers(0, 2**31))
def test_equals_plain_integer_arithmetic(seed: int, position: int) -> None:
    found = gumbel(seed, position, 20, CPU)
    expected = torch.tensor([reference(seed, position, token) for token in range(20)])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_pinned_values() -> None:
    """A change here changes what every seed means: do not make one by accident."""
    assert [round(x, 4) for x in gumbel(42, 7, 3, CPU).tolist()] == [0.8064, -1.5753, -0.8639]


def test_size_does_not_matter() -> None:
    assert torch.equal(gumbel(1, 2, 50, CPU), gumbel(1, 2, 5000, CPU)[:50])


def uniforms(noise: torch.Tensor) -> torch.Tensor:
    """Undoes the Gumbel transform."""
    return torch.exp(-torch.exp(-noise.double()))


@pytest.mark.parametrize(("seed", "position"), list(product([0, 1, 2**63], [0, 1, 4095])))
def test_uniform_over_tokens(seed: int, position: int) -> None:
    assert_uniform(uniforms(gumbel(seed, position, 100_000, CPU)))


@pytest.mark.parametrize("token", [0, 1, 499])
def test_uniform_over_positions_and_seeds(token: int) -> None:
    by_position = torch.stack([gumbel(5, position, 500, CPU)[token] for position in range(4000)])
    by_seed = torch.stack([gumbel(seed, 5, 500, CPU)[token] for seed in range(4000)])
    assert_uniform(uniforms(by_position))
    assert_uniform(uniforms(by_seed))


def assert_uniform(values: torch.Tensor) -> None:
    """Chi-square over 100 equal bins, to six standard deviations."""
    assert torch.isfinite(values).all()
    counts = torch.histc(values, 100, 0, 1)
    expected = len(values) / 100
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert abs(statistic - 99) < 6 * math.sqrt(2 * 99)


@pytest.mark.parametrize(
    ("one", "other"),
    [((0, 0), (0, 1)), ((0, 0), (1, 0)), ((3, 4), (4, 3)), ((7, 1), (7, 2**20)), ((0, 1), (1, 0)), ((-1, 0), (1, 0))],
)
def test_neighbouring_counters_are_unrelated(one: tuple[int, int], other: tuple[int, int]) -> None:
    size = 100_000
    first, second = uniforms(gumbel(*one, size, CPU)), uniforms(gumbel(*other, size, CPU))
    for shift in (-2, -1, 0, 1, 2):
        pair = torch.stack([first, second.roll(shift)])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 6 / math.sqrt(size)
    # The joint distribution, not only its correlation: 100 cells.
    cells = (first * 10).long() * 10 + (second * 10).long()
    counts = torch.bincount(cells, minlength=100).double()
    statistic = float(((counts - size / 100) ** 2 / (size / 100)).sum())
    assert abs(statistic - 99) < 6 * math.sqrt(2 * 99)


def test_neighbouring_tokens_are_unrelated() -> None:
    values = uniforms(gumbel(9, 9, 100_001, CPU))
    assert abs(float(torch.corrcoef(torch.stack([values[:-1], values[1:]]))[0, 1])) < 6 / math.sqrt(100_000)


def test_tails_reach_beyond_float32() -> None:
    largest = max(float(gumbel(seed, 0, 1_000_000, CPU).max()) for seed in range(40))
    assert largest > 16.7, "40 million draws should exceed what 24-bit uniforms could give"
