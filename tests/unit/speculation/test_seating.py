"""Requests that take slots and leave them: memory is never promised twice, and whoever is first in line gets a slot."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.decisions.controller import Controller
from speculation.decisions.estimates import Choice
from speculation.decisions.policy import pipelined
from speculation.decisions.schedule import Schedule
from speculation.decisions.shapes.chooser import ShapeOfFrames
from speculation.drafters.none import NoDrafter
from speculation.queue import RequestQueue
from speculation.seating import Seating
from speculation.stream import Request, Stream
from workers.shared.frames import Shape
from workers.shared.messages import Generate, Rollback, Sample, Sampling

CHUNK, LONGEST = 4, 24


class House:
    """Slots and a queue without an engine around them: stages answer at once."""

    def __init__(self, slots: int, positions: int) -> None:
        numbers = itertools.count()
        self._controller = Controller(2, [Choice("none")])
        shapes = ShapeOfFrames(2, [Shape()], self._controller.costs)
        self.streams = [
            Stream(Schedule(slot, 2, pipelined(2), CHUNK, numbers), NoDrafter(), shapes) for slot in range(slots)
        ]
        self.seating = Seating(self.streams, positions)
        self.queue = RequestQueue()
        self.positions = positions
        self.started: list[str] = []

    def arrive(self, name: str, prompt: list[int], new: int) -> None:
        self.queue.arrived(b"client", Generate(name, prompt, new, Sampling(seed=0)))

    def start(self) -> list[Rollback]:
        """As many as may; returns what was forgotten for them."""
        forgotten: list[Rollback] = []
        while idle := [stream.slot for stream in self.streams if stream.request is None]:
            request = self.queue.next(len(idle), self.seating.fits, self.seating.held_back)
            if request is None:
                break
            forgotten += self.take(request, idle)
            reserved = sum(stream.schedule.reserved for stream in self.streams)
            assert reserved <= self.positions, "memory is promised twice"
        return forgotten

    def take(self, request: Request, idle: list[int]) -> list[Rollback]:
        session = self._controller.begin(8)
        place, rollbacks = self.seating.make_room(request, self.seating.choose(request, idle, session))
        holder = self.streams[place.source].schedule
        assert request.generate.prompt[: place.reused] == holder.tokens[: place.reused]
        assert place.reused <= holder.kept
        self.streams[place.slot].begin(request, place.reused, session)
        self.started.append(request.generate.id)
        return rollbacks

    def compute(self, stream: Stream) -> None:
        """One frame of a request."""
        schedule = stream.schedule
        schedule.announce()
        frame = schedule.in_flight[0]
        tokens = (9,) if frame.wants_sample else ()
        if schedule.sample(Sample(schedule.sequence, frame.epoch, frame.end, tokens)).finish is not None:
            stream.end()


def test_a_request_that_does_not_fit_is_not_passed_over() -> None:
    house = House(3, LONGEST)
    house.arrive("long", [1] * 12, 8)
    house.arrive("longer", [2] * 12, 8)
    house.arrive("short", [3], 1)
    house.start()
    assert house.started == ["long"]
    while house.streams[0].request is not None:
        house.compute(house.streams[0])
    assert house.start() == [Rollback(0, house.streams[0].schedule.epoch)], "what was kept of the first is forgotten"
    assert house.started == ["long", "longer", "short"]


def test_one_that_is_held_back_keeps_a_slot() -> None:
    house = House(2, 100)
    house.arrive("first", [1] * 12, 2)
    house.arrive("alike", [1] * 12, 2)
    house.arrive("other", [2], 1)
    house.start()
    assert house.started == ["first"], "the second slot is for the one that waits for the prompt of the first"
    while house.streams[0].schedule.kept < 8:
        house.compute(house.streams[0])
        house.start()
    assert house.started == ["first", "alike"]
    assert house.streams[1].schedule.reused == 8


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=LONGEST - 4)


@settings(max_examples=100)
@given(
    st.integers(1, 4), st.integers(LONGEST, 3 * LONGEST), st.lists(st.tuples(prompts, st.integers(1, 4))), st.integers()
)
def test_everybody_is_served_and_memory_is_never_promised_twice(
    slots: int, positions: int, asked: list[tuple[list[int], int]], seed: int
) -> None:
    house, rng = House(slots, positions), random.Random(seed)
    todo = [(str(number), prompt, new) for number, (prompt, new) in enumerate(asked)]
    while todo or house.queue.waiting() or any(stream.request for stream in house.streams):
        running = [stream for stream in house.streams if stream.request is not None]
        if todo and (not running or rng.random() < 0.5):
            house.arrive(*todo.pop(0))
        elif running:
            house.compute(rng.choice(running))
        house.start()
        assert any(stream.request for stream in house.streams) or not house.queue.waiting(), "nobody is served"
    assert sorted(house.started, key=int) == [str(number) for number in range(len(asked))]
