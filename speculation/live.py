"""What rank 0 tells of the pipeline at work while somebody looks."""

import time
from collections import defaultdict
from collections.abc import Iterable

from speculation.channels import Channels
from speculation.decisions.drafts.steps import Step
from speculation.decisions.trace import INTERVAL, ClockOffset, TraceBuffer
from speculation.stream import Stream
from workers.shared.frames import Frame
from workers.shared.live.events import Began, Ended, Entered, Left, Passed, TraceEvent, name_of
from workers.shared.live.messages import Passage, Report, Trace
from workers.shared.messages import SpeculationCounts

_US = 1000  # nanoseconds


class LiveTrace:
    """Events for the clients that look; every method returns at once while there are none."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._buffer: TraceBuffer[TraceEvent] = TraceBuffer()
        self._clocks: defaultdict[int, ClockOffset] = defaultdict(ClockOffset)  # of stages
        self._accepted: dict[int, int] = {}  # drafts of the request in a slot, as of the last event
        self.on = False

    def patience(self, seconds: float) -> float:
        """How long rank 0 may sleep that would sleep for `seconds`."""
        return min(INTERVAL, seconds) if self.on else seconds

    def watch(self, client: bytes, running: Iterable[Stream]) -> None:
        """A client looks, and wants to be told of the requests in `running`, which have begun."""
        self._buffer.watch(client, time.monotonic())
        if not self.on:
            self.on = True
            self._channels.announce([Report(wanted=True)])
        for stream in running:
            self.began(stream)

    def turn(self) -> None:
        """Sends what is due."""
        if not self.on:
            return
        now = time.monotonic()
        if (batch := self._buffer.take(now)) is not None:
            message = Trace(*batch)
            for client in self._buffer.watchers:
                self._channels.answer(client, message)
        self._buffer.expire(now)
        if not self._buffer.on:
            self.on = False
            self._accepted.clear()
            self._channels.announce([Report(wanted=False)])

    def began(self, stream: Stream) -> None:
        """A request has taken its slot."""
        if self.on and stream.request is not None:
            generate, schedule = stream.request.generate, stream.schedule
            self._accepted[stream.slot] = schedule.counts.accepted
            self._buffer.add(Began(_now(), stream.slot, generate.id, len(generate.prompt), schedule.reused))

    def entered(self, frame: Frame, stream: Stream) -> None:
        """A frame of the stream is announced."""
        if self.on:
            self._buffer.add(Entered.of(_now(), frame, stream.schedule.kind(frame.position)))

    def passed(self, passage: Passage) -> None:
        """A stage is done with a frame."""
        if self.on:
            done = self._clocks[passage.stage].here(passage.done, time.perf_counter_ns())
            self._buffer.add(
                Passed(done // _US, name_of(passage.index), passage.stage, passage.worked // _US, passage.computed)
            )

    def left(self, index: int, stream: Stream, step: Step) -> None:
        """Frame number `index` of the stream has left the pipeline, which led to `step`."""
        if not self.on:
            return
        schedule = stream.schedule
        counts, tokens = schedule.counts, tuple(step.tokens)
        right = counts.accepted - self._accepted.get(stream.slot, counts.accepted)
        self._accepted[stream.slot] = counts.accepted
        drafter = "" if stream.session is None else stream.session.choice.name
        position = schedule.verified - len(tokens)
        self._buffer.add(
            Left(_now(), name_of(index), stream.slot, position, tokens, right, step.rejected, counts.cycles, drafter)
        )

    def ended(self, slot: int, counts: SpeculationCounts) -> None:
        """The request in `slot` has ended with these counts."""
        if self.on:
            self._accepted.pop(slot, None)
            drafts = counts.drafted, counts.accepted, counts.rejected, counts.discarded
            self._buffer.add(Ended(_now(), slot, *drafts, counts.cycles))


def _now() -> int:
    return time.perf_counter_ns() // _US
