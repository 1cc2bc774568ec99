"""Which slot a request gets, by what the slots and their drafters hold of its prompt."""

from collections.abc import Sequence

from speculation.decisions.slots import Place, choose_slot, soon_held, to_forget
from speculation.decisions.turns import Turns
from speculation.drafters.base import Deciding, Drafter
from speculation.stream import Request, Stream
from workers.shared.messages import Rollback


class Seating:
    """Knows who was in which slot when."""

    def __init__(self, streams: Sequence[Stream], positions: int) -> None:
        """The slots of `streams` have memory for so many `positions` together."""
        self._positions = positions
        self._schedules = [stream.schedule for stream in streams]
        self._drafters: list[Drafter] = [stream.drafter for stream in streams]
        self._turns = Turns()

    def held_back(self, request: Request) -> bool:
        """Whether a request gains by waiting for the prompt of another one."""
        return not _scored(request) and soon_held(self._schedules, request.generate.prompt, self._kept)

    def fits(self, request: Request) -> bool:
        """Whether there is memory for all that a request may come to, if idle slots forget what they keep."""
        return self._to_forget(_needed(request)) is not None

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

    def make_room(self, request: Request, place: Place) -> tuple[Place, list[Rollback]]:
        """Has idle slots forget what they keep, as far as a request needs their memory; what stages have to hear of it.

        What the request begins with is forgotten last, and then it begins with nothing.
        """
        forgotten = self._to_forget(_needed(request), place)
        assert forgotten is not None, "it was asked whether the request fits"
        if place.source in forgotten:
            place = Place(place.slot, 0, place.slot)
        return place, [self._schedules[slot].forget() for slot in forgotten]

    def _to_forget(self, wanted: int, place: Place | None = None) -> list[int] | None:
        running = sum(schedule.reserved for schedule in self._schedules if schedule.running)
        kept = {
            schedule.sequence: schedule.kept
            for schedule in self._schedules
            if not schedule.running and (place is None or schedule.sequence != place.slot)
        }
        source = None if place is None else place.source
        order = sorted(self._turns.order(kept), key=lambda slot: slot == source)
        return to_forget(self._positions, running, kept, order, wanted)

    def _kept(self, slot: int) -> int | None:
        return self._drafters[slot].kept()


def _scored(request: Request) -> bool:
    """Whether it wants log-probabilities of its prompt, which takes every frame of it."""
    return request.generate.sampling.prompt_logprobs is not None


def _needed(request: Request) -> int:
    """Positions that a request may come to need."""
    return len(request.generate.prompt) + request.generate.max_tokens
