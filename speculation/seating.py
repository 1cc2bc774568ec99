"""Which slot a request gets, by what the slots and their drafters hold of its prompt."""

from collections.abc import Sequence

from speculation.decisions.slots import Place, choose_slot, soon_held
from speculation.decisions.turns import Turns
from speculation.drafters.base import Deciding, Drafter
from speculation.stream import Request, Stream


class Seating:
    """Knows who was in which slot when."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._schedules = [stream.schedule for stream in streams]
        self._drafters: list[Drafter] = [stream.drafter for stream in streams]
        self._turns = Turns()

    def held_back(self, request: Request) -> bool:
        """Whether a request gains by waiting for the prompt of another one."""
        return not _scored(request) and soon_held(self._schedules, request.generate.prompt, self._kept)

    def choose(self, request: Request, idle: Sequence[int], session: Deciding) -> Place:
        """The one of the `idle` slots that suits a request best, which takes it.

        What its drafter would need and has not kept is told to `session`.
        """
        if _scored(request):
            place = choose_slot(self._schedules, self._turns.order(idle), request.generate.prompt, lambda _: 0)
        else:
            limit = self._kept if session.choice.listens else lambda _: None
            place = choose_slot(self._schedules, self._turns.order(idle), request.generate.prompt, limit)
        kept = self._kept(place.source)
        if kept is not None and kept < place.reused:
            session.deafen()
        self._turns.took(place.slot)
        return place

    def _kept(self, slot: int) -> int | None:
        return self._drafters[slot].kept()


def _scored(request: Request) -> bool:
    """Whether it wants log-probabilities of its prompt, which takes every frame of it."""
    return request.generate.sampling.prompt_logprobs is not None
