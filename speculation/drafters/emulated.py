"""A drafter that takes as long as one on a device that is not at hand."""

import time
from collections.abc import Sequence

from speculation.drafters.base import Answer, Draft, Drafter, DrafterWrapper


class EmulatedDrafter(DrafterWrapper):
    """A draft is ready `draft_ms` after it was asked for, or later. Where there is none, none has taken time."""

    def __init__(self, inner: Drafter, draft_ms: float) -> None:
        super().__init__(inner)
        self._draft_ns = int(draft_ms * 1e6)

    def draft(self, tokens: Sequence[int]) -> Answer:
        """The wrapped drafter's answer, a guess once its time has passed."""
        due = time.perf_counter_ns() + self._draft_ns
        guess = self._inner.draft(tokens)
        if isinstance(guess, Draft) and (left := due - time.perf_counter_ns()) > 0:
            time.sleep(left * 1e-9)
        return guess
