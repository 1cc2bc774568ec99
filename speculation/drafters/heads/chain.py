"""Drafts one after the other, each from the output for the one before (EAGLE-3, and heads for multi-token prediction).

The first draft follows from the newest feature. Each further one takes a row of its own, whose feature is the output of
the row before. When a feature arrives, what was made with outputs in its place is made anew.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speculation.drafters.base import Start
from speculation.drafters.heads.verified import VerifiedStatesDrafter
from speculation.heads.runtime import HeadRuntime
from speculation.taps import TapBuffer
from workers.shared.messages import Sampling


class ChainDrafter(VerifiedStatesDrafter):
    """One pass over one row for each draft, beside those that arrived features call for."""

    def __init__(self, runtime: HeadRuntime, taps: TapBuffer, vocab_size: int) -> None:
        super().__init__(runtime, taps, vocab_size)
        self._base = -1  # position of the newest verified token when the chain began
        self._chain: list[tuple[int, Tensor]] = []  # drafts behind it, each with the output of its row

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """Nothing is known of this text."""
        super().begin(prompt, sampling, start)
        self._base = -1

    def _output(self, tokens: Sequence[int], base: int) -> Tensor:
        self._catch_up(base)
        if base != self._base:
            self._base = base
            self._chain.clear()
        drafts = tokens[base + 1 :]
        known = min(len(self._chain), len(drafts))
        known = next((place for place in range(known) if self._chain[place][0] != drafts[place]), known)
        del self._chain[known:]
        output = self._chain[-1][1] if self._chain else self._last
        for place in range(known, len(drafts)):
            with torch.inference_mode():
                feature = self._head.fed_back(output)
            output = self._runtime.run(base + place, drafts[place : place + 1], feature)
            self._chain.append((drafts[place], output))
        return output
