"""Stops asking a drafter for as long as the governor finds that its drafts lose."""

from collections.abc import Sequence

from speculation.decisions.governor import Governor
from speculation.drafters.base import Answer, Drafter, DrafterWrapper


class GovernedDrafter(DrafterWrapper):
    """Has no guess while `governor` wants none. What happens is told to the wrapped drafter all the same."""

    def __init__(self, inner: Drafter, governor: Governor) -> None:
        super().__init__(inner)
        self._governor = governor

    def draft(self, tokens: Sequence[int]) -> Answer:
        """The wrapped drafter's answer, if drafts are wanted now."""
        return self._inner.draft(tokens) if self._governor.drafting else None
