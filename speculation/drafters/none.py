"""No drafter: the plain pipeline."""

from collections.abc import Sequence

from workers.messages import Sampling


class NoDrafter:
    """Never guesses."""

    def begin(self, prompt: Sequence[int], sampling: Sampling) -> None:
        """Nothing to learn."""

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """Nothing to learn."""

    def draft(self, tokens: Sequence[int]) -> int | None:
        """Always None."""
        return None
