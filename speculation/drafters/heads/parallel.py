"""Drafts several tokens in one pass (P-EAGLE): behind the newest feature there are rows of a mask token.

No draft depends on another, but only on how far it is behind the newest verified token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speculation.drafters.base import Start
from speculation.drafters.heads.verified import VerifiedStatesDrafter
from speculation.heads.network import EagleHead
from speculation.heads.runtime import HeadRuntime
from speculation.taps import TapBuffer
from workers.shared.messages import Sampling


class ParallelDrafter(VerifiedStatesDrafter):
    """One pass for all drafts of a round, or for as many as there are tokens in flight."""

    def __init__(
        self,
        runtime: HeadRuntime,
        taps: TapBuffer,
        vocab_size: int,
        head: EagleHead,
        frames: int,
        *,
        branches: bool = False,
    ) -> None:
        """`head` is the runtime's; at most `frames` frames are in flight. Rows of the mask need no scratch."""
        super().__init__(runtime, taps, vocab_size, branches=branches)
        assert head.config.mask_token_id is not None
        self._mask_token = head.config.mask_token_id
        with torch.inference_mode():
            self._masked = head.masked_feature()
        self._frames = frames
        self._ahead = 1  # drafts behind the newest verified token, at most
        self._base = -1  # position of that token at the last pass
        self._outputs: list[Tensor] = []  # for each place behind it, [1, width]
        self._foreseen: dict[int, Tensor] = {}  # logits by place: those of all drafts there

    def frames(self, width: int) -> None:
        """Frames to come hold so many tokens: where there are several, drafts run a frame ahead of them."""
        self._ahead = max(1, self._frames * width - 1 + (width if self._frames > 1 else 0))

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Nothing is known of this text."""
        super().begin(prompt, sampling, start)
        self._base = -1

    def _scores(self, drafts: Sequence[int], base: int) -> Tensor:
        place = len(drafts)
        if base != self._base:
            masks = self._rows(base, max(self._ahead - 1, place))
            rest = self._catch_up(base, self._masked.expand(masks, -1), self._mask_token)
            self._base = base
            self._foreseen.clear()
            self._outputs = [self._last, *(rest[row : row + 1] for row in range(masks) if rest is not None)]
        while len(self._outputs) <= place:
            start = base + len(self._outputs) - 1
            self._outputs.append(self._runtime.run(start, [self._mask_token], self._masked))
        if place not in self._foreseen:
            with torch.inference_mode():
                self._foreseen[place] = self._head.logits(self._outputs[place])[0]
        return self._foreseen[place]

    def _rows(self, base: int, wanted: int) -> int:
        """As many rows of the mask as there is room for."""
        return min(wanted, self._runtime.capacity - base)
