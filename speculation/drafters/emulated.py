"""A drafter that takes as long as one on a device that is not at hand."""

import time
from collections.abc import Sequence

from speculation.drafters.base import Draft, Drafter, Start
from workers.messages import Sampling, Tap


class EmulatedDrafter(Drafter):
    """Wraps a drafter: a draft is ready `draft_ms` after it was asked for, or later.

    Where there is no draft, none has taken time.
    """

    def __init__(self, inner: Drafter, draft_ms: float) -> None:
        self.anchors = inner.anchors
        self._inner = inner
        self._draft_ns = int(draft_ms * 1e6)

    def kept(self, slot: int) -> int | None:
        """What the drafter has kept."""
        return self._inner.kept(slot)

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """For the drafter."""
        self._inner.begin(prompt, sampling, start)

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """For the drafter."""
        self._inner.verified(tokens, count)

    def rejected(self, position: int, epoch: int) -> None:
        """For the drafter."""
        self._inner.rejected(position, epoch)

    def tap(self, tap: Tap) -> None:
        """For the drafter."""
        self._inner.tap(tap)

    def advance(self) -> bool:
        """The drafter's work ahead."""
        return self._inner.advance()

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        """The drafter's guess, once its time has passed."""
        due = time.perf_counter_ns() + self._draft_ns
        guess = self._inner.draft(tokens)
        if guess is not None and (left := due - time.perf_counter_ns()) > 0:
            time.sleep(left * 1e-9)
        return guess
