"""A shard that computes nothing: for rehearsals that measure what the rest of a cycle costs.

With an emulated stage time a stage's own arithmetic stands in for a device that would not use this machine's cores.
On few cores it is in the way: eight stages of two small layers each are most of a cycle of a few milliseconds.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from workers.model.loader import load_config
from workers.shared.config import EngineConfig
from workers.shared.frames import Branches, Move


class HollowShard:
    """Takes the place of `workers.model.shard.Shard`: the shapes are right, the values are zero."""

    weight_bytes = 0
    kv_bytes = 0

    def __init__(self, config: EngineConfig) -> None:
        sizes = load_config(Path(config.model))
        self.hidden_size: int = sizes.hidden_size
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.device = torch.device("cpu")
        self._logits = torch.zeros(sizes.vocab_size)

    def observe(self, anchors: Sequence[int]) -> None:
        """There is nothing to tap."""

    def copy(self, source: int, target: int, positions: int) -> None:
        """There is nothing to copy."""

    def release(self, sequence: int, kept: int) -> None:
        """There is nothing to give back."""

    def move(self, sequence: int, moves: Sequence[Move]) -> None:
        """There is nothing to move."""

    def forward(
        self,
        sequence: int,
        position: int,
        tokens: Sequence[int],
        hidden: Tensor | None,
        taps: list[Tensor] | None = None,
        branches: Branches | None = None,
    ) -> Tensor:
        """Zeros [T, hidden_size] from the first stage; what came in from the others."""
        return torch.zeros(len(tokens), self.hidden_size, dtype=self.dtype) if hidden is None else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Zeros [vocabulary]."""
        return self._logits

    def row_logits(self, hidden: Tensor) -> Tensor:
        """Zeros [T, vocabulary]."""
        return self._logits.expand(len(hidden), -1)
