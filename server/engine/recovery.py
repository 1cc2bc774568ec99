"""What becomes of open sequences when the engine is lost. No sockets, no clock.

The engine is deterministic: a sequence that is sent again with the tokens it has been given goes on as if nothing had
been (docs/reliability.md). So its client need not know.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from workers.shared.messages import Failed, Generate, Tokens

_LATE = 2  # intervals between two looks that a busy event loop may take


@dataclass
class _Open:
    request: Generate
    generated: list[int] = field(default_factory=list)
    sent: int = 1  # times
    waiting: bool = False  # to be sent again, as the engine that had it is lost


class Recovery:
    """The open sequences, in the order in which they were opened.

    Invariant: whatever is lost and when, the messages of a sequence, put together, are those of an engine that never
    failed, or end with giving the sequence up.
    """

    def __init__(self, attempts: int, seconds: float, interval: float) -> None:
        """A sequence is sent again at most `attempts` times, and after at most `seconds` without an engine.

        `interval`: seconds between two calls of `look` in a process that runs; time in which it does not run is not
        the engine's.
        """
        self._attempts = attempts
        self._seconds = seconds
        self._interval = interval
        self._open: dict[str, _Open] = {}
        self._looked_at: float | None = None
        self._away = 0.0  # seconds

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, identifier: str) -> bool:
        return identifier in self._open

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    def opened(self, request: Generate) -> None:
        """A sequence has been sent to the engine for the first time."""
        self._open[request.id] = _Open(request, list(request.generated))

    def received(self, message: Tokens | Failed) -> bool:
        """Takes note of what the engine says; False where it is no open sequence's, and means nothing."""
        if message.id not in self._open:
            return False
        if isinstance(message, Failed) or message.finish is not None:
            del self._open[message.id]
        else:
            self._open[message.id].generated += message.tokens
        return True

    def closed(self, identifier: str) -> bool:
        """Nobody wants the rest of a sequence; returns whether it was open."""
        return self._open.pop(identifier, None) is not None

    def lost(self) -> list[str]:
        """The connection to the engine is lost; returns the sequences that are given up, and no longer open."""
        for sequence in self._open.values():
            sequence.waiting = True
        return self._give_up([name for name, sequence in self._open.items() if sequence.sent > self._attempts])

    def back(self) -> list[Generate]:
        """The engine answers on a new connection; returns what is to be sent to it, in this order."""
        again = []
        for sequence in self._open.values():
            if sequence.waiting:
                sequence.waiting = False
                sequence.sent += 1
                again.append(_rest(sequence.request, sequence.generated))
        return again

    def look(self, now: float, *, healthy: bool) -> list[str]:
        """Looks at the clock, in seconds; returns the sequences that are given up after too long an absence."""
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, _LATE * self._interval)
        self._looked_at = now
        if healthy:
            self._away = 0.0
            return []
        if self._away >= self._seconds:
            return self._give_up(list(self._open))
        self._away += passed
        return []

    def _give_up(self, identifiers: list[str]) -> list[str]:
        for identifier in identifiers:
            del self._open[identifier]
        return identifiers


def _rest(request: Generate, generated: list[int]) -> Generate:
    """What asks for the rest; scores of the prompt came with the first token."""
    sampling = request.sampling
    if generated and sampling.prompt_logprobs is not None:
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
    return msgspec.structs.replace(request, sampling=sampling, generated=tuple(generated))
