"""Eight-bit weights for drafts on a CPU, where reading the weights is what a draft of few rows takes its time for."""

from time import perf_counter

import torch
from torch import Tensor, nn

_ALIGNMENT = 32  # the kernel reads whole vectors, beyond the end of a row that is not a multiple
_TRIED_ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
_TRIES = 5  # of which the shortest counts: what disturbs only adds


class FewRowsLinear(nn.Module):
    """A linear layer that multiplies few rows with its weights rounded to eight bits, one scale an output.

    A draft may be inexact: it is verified. On the shipped module an output is off by less than one per cent.
    """

    def __init__(self, exact: nn.Linear, few: int) -> None:
        """Of `exact`, float32 or bfloat16; up to `few` rows are few."""
        super().__init__()
        self.few = few
        self._exact = exact
        weight = exact.weight.float()
        scales = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.bfloat16).tiny).to(torch.bfloat16)
        rounded = (weight / scales.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        self.register_buffer("_rounded", rounded, persistent=False)
        self.register_buffer("_scales", scales, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """`[..., in]` to `[..., out]`, of the dtype of `rows`."""
        flat = rows.reshape(-1, rows.shape[-1])
        if len(flat) > self.few:
            exact: Tensor = self._exact(rows)
            return exact
        # Of bfloat16 rows alone: with others the kernel takes one number at a time.
        packed: Tensor = torch.ops.aten._weight_int8pack_mm(flat.bfloat16(), self._rounded, self._scales)
        product = packed.to(rows.dtype)
        if self._exact.bias is not None:
            product = product + self._exact.bias
        return product.view(*rows.shape[:-1], -1)


def quantize(module: nn.Module) -> None:
    """Replaces the linear layers in a `module` on a CPU whose width suits the kernel, and that it makes faster."""
    few: dict[torch.Size, int] = {}
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child.in_features % _ALIGNMENT == 0:
                shape = child.weight.shape
                if shape not in few:
                    few[shape] = _rows_worth_rounding(child)
                if few[shape]:
                    setattr(parent, name, FewRowsLinear(child, few[shape]))


@torch.inference_mode()
def _rows_worth_rounding(linear: nn.Linear) -> int:
    """The most rows that rounded weights multiply faster than those of `linear`, on this processor; 0 for none."""
    rounded = FewRowsLinear(linear, _TRIED_ROWS[-1])
    few = 0
    for count in _TRIED_ROWS:
        rows = linear.weight.new_ones(count, linear.in_features)
        if _seconds(rounded, rows) > _seconds(linear, rows):
            break
        few = count
    return few


def _seconds(layer: nn.Module, rows: Tensor) -> float:
    taken = []
    for _ in range(_TRIES):
        start = perf_counter()
        layer(rows)
        taken.append(perf_counter() - start)
    return min(taken)
