"""The interface of a drafter."""

from collections.abc import Sequence
from typing import Protocol

from workers.messages import Sampling


class Drafter(Protocol):
    """Guesses one token at a time. A guess may be wrong or missing, never harmful."""

    def begin(self, prompt: Sequence[int], sampling: Sampling) -> None:
        """A request starts; whatever was known of the one before is forgotten."""

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """One more token is verified: `tokens[:count]` are final; what follows are drafts."""

    def draft(self, tokens: Sequence[int]) -> int | None:
        """The token after `tokens`, which ends with drafts that are not verified yet.

        None means no guess for now; the engine asks again after the next event.
        """
