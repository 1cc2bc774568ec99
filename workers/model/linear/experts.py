"""Experts whose weights stay packed: each a linear layer of its own, where the family keeps one matrix an expert."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class ExpertMatrix(nn.Module):
    """Stands for one expert's matrix: rows that are multiplied with it go through its layers instead.

    Families choose experts and combine what they say in code of their own, which takes `parameter[expert]` and
    multiplies with it. So that code stays theirs, and of all experts only those compute that were chosen.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        """`layers` give the outputs of the matrix in turn, the first rows of the weights first."""
        super().__init__()
        self._layers = nn.ModuleList(layers)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., columns] to [..., rows of the weights], in the dtype of `rows`."""
        outputs = [layer(rows) for layer in self._layers]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """`linear(rows, matrix)`, and `rows @ matrix` where a family keeps matrices by column; nothing else."""
        if function not in (linear, Tensor.matmul) or len(args) != 2 or kwargs:
            return NotImplemented
        rows, matrix = args
        return matrix(rows)


class WholeLinear(nn.Module):
    """Weights that are not packed, for an expert of which others are."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self._weight = weight

    def forward(self, rows: Tensor) -> Tensor:
        """[..., columns] to [..., rows of the weights]."""
        return linear(rows, self._weight)
