"""A head's rows for one sequence: pairs of a feature and the token after it, by the feature's position."""

from collections.abc import Sequence

import torch
from torch import Tensor

from speculation.heads.network import FeatureHead
from workers.model.attention import FrameContext, Rows, TreeContext
from workers.model.rotary import CosSin
from workers.shared.frames import REAL, Branches, Path


class HeadRuntime:
    """Holds keys and values of the rows of one sequence. Several share one head; memory is there from the start.

    The first `cached` rows are of verified tokens and stay; what is behind them is overwritten by the next pass, so a
    rejection undoes nothing.
    """

    def __init__(self, head: FeatureHead, capacity: int, scratch: int = 0) -> None:
        """`capacity` is the number of rows that there may be, those of drafts included.

        For `run_level` there have to be as many rows of `scratch` as the stages have.
        """
        self.head = head
        self.cached = 0
        self.capacity = capacity
        self._cache = head.new_cache(capacity, scratch)
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
        held = self._cache
        frame = FrameContext(held.layers(0), start, len(tokens), scratch=held.scratch, chunk_masks=held.chunk_masks)
        self._check(frame.end)
        return self._outputs(tokens, features, self._rotary.at(start, frame.end), frame)

    @torch.inference_mode()
    def run_level(self, start: int, paths: Sequence[Path], tokens: Sequence[int], features: Tensor) -> Tensor:
        """The same of rows at one position, each of which sees the rows before `start` and those on its own path.

        A path holds the slots of scratch of the rows from `start` on, the last of which is the row's own.
        """
        if len(paths) == 1 and set(paths[0]) == {REAL}:
            return self.run(start + len(paths[0]) - 1, tokens, features)
        branches = Branches(start, tuple(paths))
        self._check(branches.end)
        tree = TreeContext(self._cache.layers(0), branches, features.device, self._cache.scratch)
        return self._outputs(tokens, features, self._rotary.rows(tree.positions[0]), tree)

    def _check(self, end: int) -> None:
        if end > self.capacity:
            raise ValueError(f"draft head: position {end - 1} is beyond its capacity of {self.capacity}")

    def _outputs(self, tokens: Sequence[int], features: Tensor, rotary: Sequence[CosSin], rows: Rows) -> Tensor:
        outputs: Tensor = self.head(torch.tensor(tokens, device=features.device), features, rotary, rows)
        return outputs
