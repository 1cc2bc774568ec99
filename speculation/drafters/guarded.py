"""A drafter that fails is silenced and reported; the request goes on without drafts."""

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from speculation.decisions.drafts.tree import Node
from speculation.drafters.base import Answer, Drafter, DrafterWrapper, Start
from workers.shared.messages import Sampling, Tap

_Result = TypeVar("_Result")

_PATIENCE = 3  # failures after which a slot's drafter is not tried again


class GuardedDrafter(DrafterWrapper):
    """Has no guess from a failure of the wrapped drafter on. The next request may try it again, a few times."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.failures = 0  # since start
        self._silent = False

    def kept(self) -> int | None:
        """What the wrapped drafter has kept; what one that has failed holds cannot be relied on."""
        if not self._silent:
            nothing: int | None = 0
            return self._try(self._inner.kept, nothing)
        return None if self._given_up else 0

    def begin(self, prompt: Sequence[int], sampling: Sampling, start: Start) -> None:
        """For the wrapped drafter."""
        self._silent = self._given_up
        self._tell(lambda: self._inner.begin(prompt, sampling, start))

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """For the wrapped drafter."""
        self._tell(lambda: self._inner.verified(tokens, count))

    def rejected(self, position: int, epoch: int) -> None:
        """For the wrapped drafter."""
        self._tell(lambda: self._inner.rejected(position, epoch))

    def tap(self, tap: Tap) -> None:
        """For the wrapped drafter."""
        self._tell(lambda: self._inner.tap(tap))

    def deafen(self) -> None:
        """For the wrapped drafter."""
        self._tell(self._inner.deafen)

    def frames(self, width: int) -> None:
        """For the wrapped drafter."""
        self._tell(lambda: self._inner.frames(width))

    def level(self, tokens: Sequence[int], verified: int, leaves: Sequence[Node]) -> None:
        """For the wrapped drafter."""
        self._tell(lambda: self._inner.level(tokens, verified, leaves))

    def sent(self, frame: int, nodes: Sequence[Node]) -> None:
        """For the wrapped drafter."""
        self._tell(lambda: self._inner.sent(frame, nodes))

    def chosen(self, node: Node, slot: int) -> None:
        """For the wrapped drafter."""
        self._tell(lambda: self._inner.chosen(node, slot))

    def advance(self) -> bool:
        """The wrapped drafter's work ahead."""
        return not self._silent and self._try(self._inner.advance, False)

    def draft(self, tokens: Sequence[int]) -> Answer:
        """The wrapped drafter's answer, or nothing."""
        return None if self._silent else self._try(lambda: self._inner.draft(tokens), None)

    @property
    def _given_up(self) -> bool:
        return self.failures >= _PATIENCE

    def _tell(self, call: Callable[[], None]) -> None:
        if not self._silent:
            self._try(call, None)

    def _try(self, call: Callable[[], _Result], otherwise: _Result) -> _Result:
        try:
            return call()
        except Exception:  # noqa: BLE001 -- whatever is wrong with a drafter, the request does not need it
            self.failures += 1
            self._silent = True
            again = "until the next request" if not self._given_up else "in this slot until the engine restarts"
            print(f"drafter failed; no drafts {again}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            return otherwise
