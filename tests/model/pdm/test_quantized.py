"""Eight-bit weights: close for few rows, exact for many, and only where the kernel takes them."""

import pytest
import torch
from torch import nn

from speculation.pdm.quantized import FewRowsLinear, quantize


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 6])
def test_few_rows_are_within_two_per_cent(rows: int, bias: bool) -> None:
    torch.manual_seed(rows)
    exact = nn.Linear(96, 40, bias=bias).to(torch.bfloat16).requires_grad_(False)
    exact.weight[3] = 0  # a row of zeros has no scale of its own
    inputs = torch.randn(1, rows, 96, dtype=torch.bfloat16)
    expected = exact(inputs).float()
    found = FewRowsLinear(exact)(inputs).float()
    assert found.shape == expected.shape
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_many_rows_are_exact() -> None:
    exact = nn.Linear(64, 8).to(torch.bfloat16)
    inputs = torch.randn(7, 64, dtype=torch.bfloat16)
    assert torch.equal(FewRowsLinear(exact)(inputs), exact(inputs))


def test_widths_that_the_kernel_cannot_read_stay_as_they_are() -> None:
    module = nn.Sequential(nn.Linear(33, 8), nn.Sequential(nn.Linear(32, 8))).to(torch.bfloat16)
    quantize(module)
    assert [type(layer) for layer in (module[0], module[1][0])] == [nn.Linear, FewRowsLinear]
