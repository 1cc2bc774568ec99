"""What one dashboard is told of the trace: positions and verdicts of everybody, text of its own requests only."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import astuple

from workers.shared.live.events import Began, Ended, Entered, Left, TraceEvent
from workers.shared.live.messages import Trace


class View:
    """Turns batches of events into JSON. Requests of others have a number in place of their id.

    `own` says whether a sequence, by id, was asked for by this viewer; `text` is how a token is written.
    """

    def __init__(self, own: Callable[[str], bool], text: Callable[[int], str]) -> None:
        self._own = own
        self._text = text
        self._slots: dict[int, tuple[str, int, bool]] = {}  # id, number, whether it is the viewer's own
        self._count = 0

    def batch(self, trace: Trace) -> dict[str, Any]:
        """`events`, each a list that begins with the event's name and its fields, and how many were `lost` before."""
        return {"lost": trace.lost, "events": [self._row(event) for event in trace.events]}

    def _row(self, event: TraceEvent) -> list[Any]:
        match event:
            case Began(at, slot, identifier, prompt, reused):
                number, own = self._number(slot, identifier)
                return ["began", at, slot, number, prompt, reused, own]
            case Entered():
                return ["entered", *astuple(event)[:-1], self._texts(event.slot, event.tokens)]
            case Left(at, frame, slot, position, tokens, right, wrong, cycles, drafter):
                texts = self._texts(slot, tokens)
                return ["left", at, frame, slot, position, len(tokens), right, wrong, cycles, drafter, texts]
            case Ended():
                self._slots.pop(event.slot, None)
                return ["ended", *astuple(event)]
            case passed:
                return ["passed", *astuple(passed)]

    def _number(self, slot: int, identifier: str) -> tuple[int, bool]:
        known = self._slots.get(slot)
        if known is None or known[0] != identifier:
            self._count += 1
            known = self._slots[slot] = identifier, self._count, self._own(identifier)
        return known[1:]

    def _texts(self, slot: int, tokens: Iterable[int]) -> Sequence[str] | None:
        known = self._slots.get(slot)
        return [self._text(token) for token in tokens] if known is not None and known[2] else None
