"""Eight-bit weights: close for few rows, exact for many, and only where the kernel takes them."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from speculation.pdm import quantized
from speculation.pdm.quantized import FewRowsLinear, quantize


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 6])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_few_rows_are_within_two_per_cent(rows: int, bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    exact = nn.Linear(96, 40, bias=bias).to(dtype).requires_grad_(False)
    exact.weight[3] = 0  # a row of zeros has no scale of its own
    inputs = torch.randn(1, rows, 96, dtype=dtype)
    expected = exact(inputs)
    found = FewRowsLinear(exact, 6)(inputs)
    assert (found.shape, found.dtype) == (expected.shape, dtype)
    assert (found.float() - expected.float()).norm() < 0.02 * expected.float().norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_many_rows_are_multiplied_with_weights_of_sixteen_bits(dtype: torch.dtype) -> None:
    exact = nn.Linear(64, 8, dtype=dtype)
    inputs = torch.randn(7, 64, dtype=dtype)
    found = FewRowsLinear(exact, 6)(inputs)
    with torch.no_grad():
        exact.weight.copy_(exact.weight.bfloat16())
    assert torch.equal(found, exact(inputs))


def test_what_is_kept_is_three_bytes_a_weight() -> None:
    kept = FewRowsLinear(nn.Linear(64, 32, bias=False), 6)
    tensors = [*kept.buffers(), *kept.parameters()]
    assert sum(tensor.nbytes for tensor in tensors) == 3 * 64 * 32 + 2 * 32  # and a scale an output


@pytest.mark.parametrize(("faster_up_to", "few"), [(0, 0), (1, 1), (5, 4), (16, 16), (99, 16)])
def test_rows_are_few_as_far_as_rounding_is_faster_here(
    faster_up_to: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(layers: Sequence[nn.Module], rows: Sequence[torch.Tensor]) -> float:
        (layer,), (inputs,) = layers, rows
        return len(inputs) if isinstance(layer, FewRowsLinear) else faster_up_to + 0.5

    monkeypatch.setattr(quantized, "_seconds", seconds)
    module = nn.Sequential(nn.Linear(33, 8), nn.Sequential(nn.Linear(32, 8)))  # the kernel cannot read a width of 33
    quantize(module)
    found = module[1][0]
    assert type(module[0]) is nn.Linear
    assert (found.few if isinstance(found, FewRowsLinear) else 0) == few
