"""Eight-bit weights for drafts on a CPU, where reading the weights is what a draft of few rows takes its time for."""

import torch
from torch import Tensor, nn

_FEW_ROWS = 6  # measured: with more of them multiplying takes longer than reading, and 16-bit weights are faster
_ALIGNMENT = 32  # the kernel reads whole vectors, beyond the end of a row that is not a multiple


class FewRowsLinear(nn.Module):
    """A bfloat16 linear layer that multiplies few rows with its weights rounded to eight bits, one scale an output.

    A draft may be inexact: it is verified. On the shipped module an output is off by less than one per cent.
    """

    def __init__(self, exact: nn.Linear) -> None:
        super().__init__()
        self._exact = exact
        weight = exact.weight.float()
        scales = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.bfloat16).tiny).to(torch.bfloat16)
        rounded = (weight / scales.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        self.register_buffer("_rounded", rounded, persistent=False)
        self.register_buffer("_scales", scales, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """`[..., in]` to `[..., out]`, bfloat16."""
        flat = rows.reshape(-1, rows.shape[-1])
        if len(flat) > _FEW_ROWS:
            exact: Tensor = self._exact(rows)
            return exact
        product: Tensor = torch.ops.aten._weight_int8pack_mm(flat, self._rounded, self._scales)
        if self._exact.bias is not None:
            product = product + self._exact.bias
        return product.view(*rows.shape[:-1], -1)


def quantize(module: nn.Module) -> None:
    """Replaces every linear layer in a bfloat16 `module` on a CPU, where its width suits the kernel."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child.in_features % _ALIGNMENT == 0:
                setattr(parent, name, FewRowsLinear(child))
