"""No drafter: the plain pipeline."""

from collections.abc import Sequence

from speculation.drafters.base import Drafter, Maker
from workers.shared.config import EngineConfig


def load(engine: EngineConfig, vocab_size: int) -> Maker:
    """See `Loader`."""
    return lambda slot: NoDrafter()


class NoDrafter(Drafter):
    """Never guesses."""

    def draft(self, tokens: Sequence[int]) -> None:
        """Always None."""
        return
