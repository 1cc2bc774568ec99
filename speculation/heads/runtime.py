"""A head's rows for one sequence: pairs of a feature and the token after it, by the feature's position."""

from collections.abc import Sequence

import torch
from torch import Tensor

from speculation.heads.network import FeatureHead
from workers.model.attention import FrameContext


class HeadRuntime:
    """Holds keys and values of the rows of one sequence. Several share one head; memory is there from the start.

    The first `cached` rows are of verified tokens and stay; what is behind them is overwritten by the next pass, so a
    rejection undoes nothing.
    """

    def __init__(self, head: FeatureHead, capacity: int) -> None:
        """`capacity` is the number of rows that there may be, those of drafts included."""
        self.head = head
        self.cached = 0
        self.capacity = capacity
        self._cache = head.new_cache(capacity)
        self._rotary = head.rotary_tables(capacity)

    def reset(self, kept: int = 0) -> None:
        """Forgets the sequence but for its first `kept` rows, as far as they are cached."""
        self.cached = min(self.cached, kept)

    def copy(self, other: "HeadRuntime", positions: int) -> None:
        """Holds what `other` has cached of its first `positions` rows; a `reset` follows."""
        self.cached = min(other.cached, positions)
        self._cache.copy(0, 0, self.cached, other._cache)

    @torch.inference_mode()
    def run(self, start: int, tokens: Sequence[int], features: Tensor) -> Tensor:
        """Outputs `[rows, width]` of the rows from position `start` on, which see all rows before them.

        `features` is `[rows, width]`, `tokens` the one after each position. Raises `ValueError` beyond the capacity.
        """
        frame = FrameContext(self._cache.layers(0), start, len(tokens), chunk_masks=self._cache.chunk_masks)
        if frame.end > self.capacity:
            raise ValueError(f"draft head: position {frame.end - 1} is beyond its capacity of {self.capacity}")
        ids = torch.tensor(tokens, device=features.device)
        outputs: Tensor = self.head(ids, features, self._rotary.at(start, frame.end), frame)
        return outputs
