"""Eight-bit weights for drafts on a CPU, where reading the weights is what a draft of few rows takes its time for."""

import time
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

_ALIGNMENT = 32  # the kernel reads whole vectors, beyond the end of a row that is not a multiple
_TRIED_ROWS = (1, 2, 4, 8, 16)
_TRIED_BYTES = 1 << 27  # of exact weights, in turn: more than a cache keeps, as in a draft
_TRIES = 2  # of which the shortest counts: what disturbs only adds


class FewRowsLinear(nn.Module):
    """A linear layer that multiplies few rows with its weights rounded to eight bits, one scale an output.

    A draft may be inexact: it is verified. On the shipped module an output is off by less than one per cent. More rows,
    a prompt's, are multiplied with bfloat16 weights: three bytes a weight are kept in all.
    """

    _whole: Tensor

    def __init__(self, exact: nn.Linear, few: int) -> None:
        """Of `exact`, float32 or bfloat16; up to `few` rows are few."""
        super().__init__()
        self.few = few
        self._bias = exact.bias
        self.register_buffer("_whole", exact.weight.detach().bfloat16(), persistent=False)
        weight = exact.weight.float()
        scales = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.bfloat16).tiny).to(torch.bfloat16)
        rounded = (weight / scales.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        self.register_buffer("_rounded", rounded, persistent=False)
        self.register_buffer("_scales", scales, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """`[..., in]` to `[..., out]`, of the dtype of `rows`."""
        flat = rows.reshape(-1, rows.shape[-1])
        if len(flat) > self.few:
            return linear(rows, self._whole.to(rows.dtype), self._bias)
        # Of bfloat16 rows alone: with others the kernel takes one number at a time.
        packed: Tensor = torch.ops.aten._weight_int8pack_mm(flat.bfloat16(), self._rounded, self._scales)
        product = packed.to(rows.dtype)
        if self._bias is not None:
            product = product + self._bias
        return product.view(*rows.shape[:-1], -1)


def quantize(module: nn.Module) -> None:
    """Replaces all linear layers in a `module` on a CPU whose width suits the kernel, if that makes them faster."""
    suited = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear) and child.in_features % _ALIGNMENT == 0
    ]
    few = _rows_worth_rounding([child for _, _, child in suited])
    if few:
        for parent, name, child in suited:
            setattr(parent, name, FewRowsLinear(child, few))


@torch.inference_mode()
def _rows_worth_rounding(layers: Sequence[nn.Linear]) -> int:
    """The most rows that rounded weights multiply faster than those of `layers`, on this processor; 0 for none."""
    total = accumulate(layer.weight.nbytes for layer in layers)
    tried = [layer for layer, end in zip(layers, total, strict=True) if end <= _TRIED_BYTES] or layers[:1]
    rounded = [FewRowsLinear(layer, _TRIED_ROWS[-1]) for layer in tried]
    few = 0
    for count in _TRIED_ROWS:
        rows = [layer.weight.new_ones(count, layer.in_features) for layer in tried]
        if _seconds(rounded, rows) >= _seconds(tried, rows):
            break
        few = count
    return few


def _seconds(layers: Sequence[nn.Module], rows: Sequence[Tensor]) -> float:
    """What all `layers` take, one after the other, each for its `rows`."""
    taken = []
    for _ in range(_TRIES):
        start = time.perf_counter()
        for layer, inputs in zip(layers, rows, strict=True):
            layer(inputs)
        taken.append(time.perf_counter() - start)
    return min(taken)
