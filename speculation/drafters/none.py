"""No drafter: the plain pipeline."""

from collections.abc import Sequence

from speculation.drafters.base import Draft, Drafter


class NoDrafter(Drafter):
    """Never guesses."""

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        """Always None."""
        return None
