"""Stages as events: the real look-ahead, with times, channels and what is computed left to whoever simulates."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from workers.decisions.lookahead import Lookahead
from workers.shared.frames import Frame, Move
from workers.shared.messages import Open, Rollback, Sample


class Events:
    """What happens next, and the time of it, which has no unit."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()  # of what happens at the same time

    def __bool__(self) -> bool:
        return bool(self._heap)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Does `action` at `time`."""
        heapq.heappush(self._heap, (time, next(self._order), action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Does `action` `delay` later."""
        self.at(self.now + delay, action)

    def next(self) -> None:
        """Does what comes next. Raises `IndexError` where nothing does."""
        self.now, _, action = heapq.heappop(self._heap)
        action()


class Surroundings(Protocol):
    """What stages are not themselves: links that keep order, the time that work takes, the model, and rank 0."""

    def send(self, channel: str, stage: int, arrive: Callable[[], None]) -> None:
        """Calls `arrive` once the message has crossed `channel` (control, data, results) of that stage, in order."""

    def service(self, stage: int, frame: Frame, alive: bool) -> float:
        """How long the frame occupies the stage."""

    def move(self, stage: int, moves: Sequence[Move]) -> None:
        """Moves what was verified out of scratch."""

    def compute(self, stage: int, frame: Frame, first: int | None) -> Sample | None:
        """Computes a live frame; the last stage's answer to rank 0, sampled from row `first` on."""

    def sampled(self, sample: Sample) -> None:
        """Rank 0 hears from the last stage."""


@dataclass
class SimulatedStage:
    """One server, with what has arrived for it."""

    lookahead: Lookahead
    inputs: deque[int] = field(default_factory=deque)  # frames whose hidden states have arrived
    frame: Frame | None = None  # taken from the look-ahead, its input not here yet
    computing: bool = False
    busy: float = 0.0  # time
    computed: int = 0  # frames
    skipped: int = 0  # dead frames

    @property
    def idle(self) -> bool:
        """Nothing waits here, and nothing is computed."""
        return not self.computing and self.frame is None and not self.inputs


class Stages:
    """A pipeline of simulated stages, without rank 0."""

    def __init__(self, count: int, events: Events, surroundings: Surroundings) -> None:
        self.all = [SimulatedStage(Lookahead(f"stage {index}")) for index in range(count)]
        self._events = events
        self._around = surroundings

    def announce(self, messages: Sequence[Frame | Open | Rollback]) -> None:
        """Rank 0 sends these to every stage."""
        for message in messages:
            for index in range(len(self.all)):
                self._around.send("control", index, partial(self._hear, index, message))

    def _hear(self, index: int, message: Frame | Open | Rollback) -> None:
        self.all[index].lookahead.hear(message)
        self._start(index)

    def _arrive(self, index: int, number: int) -> None:
        self.all[index].inputs.append(number)
        self._start(index)

    def _start(self, index: int) -> None:
        stage = self.all[index]
        if stage.computing:
            return
        stage.frame = stage.frame or stage.lookahead.pop()
        if stage.frame is None or (index > 0 and not stage.inputs):
            return
        frame, stage.frame, stage.computing = stage.frame, None, True
        if index > 0:
            assert stage.inputs.popleft() == frame.index, "an edge is out of order"
        moves = stage.lookahead.moves(frame)
        if moves:
            self._around.move(index, moves)
        alive = stage.lookahead.admit(frame)
        stage.computed += alive
        stage.skipped += not alive
        sample = self._around.compute(index, frame, stage.lookahead.first) if alive else None
        duration = self._around.service(index, frame, alive)
        stage.busy += duration
        self._events.after(duration, partial(self._finish, index, frame, sample))

    def _finish(self, index: int, frame: Frame, sample: Sample | None) -> None:
        stage = self.all[index]
        stage.computing = False
        if index + 1 < len(self.all):
            self._around.send("data", index, partial(self._arrive, index + 1, frame.index))
        elif sample is not None:
            if sample.tokens:
                stage.lookahead.sampled(frame, sample)
            self._around.send("results", index, partial(self._around.sampled, sample))
        self._start(index)
