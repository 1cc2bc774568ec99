"""Speculation must never lose: drafts are stopped while they cost more time than they save. No sockets, no clock."""

from dataclasses import dataclass
from enum import Enum

_DRAFTING_TOKENS = 256  # in one measurement with drafts
_PROBE_TOKENS = 16  # and in one without
_QUIET_TOKENS = 512  # before drafts get another chance
_CLEAR_WIN = 1.5  # equivalent acceptance length beyond which plain decoding need not be measured
_MARGIN = 1.02  # drafts may be this much slower before they are stopped, for measurements are noisy


class Phase(Enum):
    """What is being measured, or waited for."""

    DRAFTING = _DRAFTING_TOKENS
    PROBE = _PROBE_TOKENS
    QUIET = _QUIET_TOKENS


@dataclass
class _Measurement:
    tokens: int = 0
    seconds: float = 0.0
    cycles: int = 0


class Governor:
    """Compares the time a token takes with drafts to the time it takes without.

    Plain decoding is only measured, for a few tokens, where the tokens a cycle do not already tell that drafts win: a
    pipeline of many stages would pay dearly for every probe. Where n-1 of n stages would idle otherwise, drafts lose
    only if they slow the stages down, as a drafter on the stages' own processor does.
    """

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._phase = Phase.DRAFTING
        self._now = _Measurement()
        self._with_drafts = 0.0  # seconds a token, in the last finished measurement
        self._last: float | None = None

    @property
    def drafting(self) -> bool:
        """Whether drafts are wanted."""
        return self._phase is Phase.DRAFTING

    @property
    def quiet(self) -> bool:
        """Whether drafts have been stopped because they lost."""
        return self._phase is Phase.QUIET

    def begin(self) -> None:
        """A request starts: the time until its first token says nothing."""
        self._last = None

    def token(self, now: float, cycles: int, count: int = 1) -> None:
        """`count` tokens were verified at `now` seconds; they took `cycles` pipeline cycles by count."""
        last, self._last = self._last, now
        if last is None:
            return
        measurement = self._now
        measurement.tokens += count
        measurement.seconds += now - last
        measurement.cycles += cycles
        if measurement.tokens >= self._phase.value:
            self._phase = self._next(measurement)
            self._now = _Measurement()

    def _next(self, done: _Measurement) -> Phase:
        pace = done.seconds / done.tokens
        if self._phase is Phase.DRAFTING:
            self._with_drafts = pace
            clear = self._stages * done.tokens >= _CLEAR_WIN * done.cycles
            return Phase.DRAFTING if clear else Phase.PROBE
        if self._phase is Phase.PROBE:
            return Phase.QUIET if self._with_drafts > _MARGIN * pace else Phase.DRAFTING
        return Phase.DRAFTING
