"""The engine: rank 0's loop around the request queue, the streams that run, and the credits they share."""

import itertools
import secrets
import time
from collections.abc import Callable, Sequence

from speculation.calibration import Calibration
from speculation.channels import Channels
from speculation.decisions.admission import refusal
from speculation.decisions.controller import Controller
from speculation.decisions.credits import Claim, Credits
from speculation.decisions.drafts.steps import FRAME_KINDS, Step
from speculation.decisions.policy import FramePolicy
from speculation.decisions.turns import Turns
from speculation.drafters.base import Deciding
from speculation.drafters.guarded import GuardedDrafter
from speculation.group import StageGroup
from speculation.info import engine_info, kv_use
from speculation.kept_calibrations import forget_measured, save_measured, say_expected
from speculation.live import LiveTrace
from speculation.queue import RequestQueue
from speculation.seating import Seating
from speculation.stats import StatsRecorder
from speculation.stream import Request, Stream, idle_streams
from workers.shared.config import EngineConfig
from workers.shared.errors import OutOfStep
from workers.shared.live.messages import Passage, Watch
from workers.shared.messages import (
    Abort,
    Compiled,
    Failed,
    Failure,
    FromEngine,
    FromStage,
    KeepAlive,
    Observe,
    Open,
    Pong,
    Probe,
    Rollback,
    Sample,
    SpeculationCounts,
    Status,
    Tap,
    ToEngine,
    TokenLogprobs,
    Tokens,
    ToStage,
)

_FIRST_NUMBER_BITS = 62


class Engine:
    """Serves as many requests at a time as there are slots; those beyond wait in line."""

    def __init__(
        self,
        config: EngineConfig,
        vocab_size: int,
        policy: FramePolicy,
        drafters: Sequence[GuardedDrafter],
        channels: Channels,
        controller: Controller,
    ) -> None:
        """`drafters` are one a slot; `controller` says for each request which of their ways to draft is used."""
        self._config = config
        self._drafters = drafters
        self._channels = channels
        self._group = StageGroup(config, channels)
        # Starting anywhere makes a frame that a stage still sends for an earlier rank 0 one that nobody expects.
        numbers = itertools.count(secrets.randbits(_FIRST_NUMBER_BITS))
        self._streams = idle_streams(config, policy, numbers, drafters, controller)
        self._queue = RequestQueue()
        self._seating = Seating(self._streams, config.kv_positions)
        self._advance_turns = Turns()
        self._running: list[Stream] = []  # in the order they began
        self._credits = Credits(policy.chunks, config.prefill_share)
        self._controller = controller
        self._observed: tuple[int, ...] = ()
        self._calibrating = False
        self._stats = StatsRecorder()
        self._trace = LiveTrace(channels)
        self._stopping = False
        self._info = engine_info(config, vocab_size)

    def stop(self) -> None:
        """Makes `run` return soon; safe to call from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Waits for every stage to be ready, then serves until stopped.

        Raises `PeerLost`, `OutOfStep` or `ConfigError` when the group cannot go on.
        """
        try:
            self._group.await_ready(self._info.fingerprint, lambda: self._stopping)
            self._channels.take_requests()
            self._calibrate()
            self._serve_while(lambda: True)
        finally:
            self._channels.dismiss()
            if self._controller.contradicted:
                forget_measured(self._config)

    def _serve_while(self, condition: Callable[[], bool]) -> None:
        more = False
        while condition() and not self._stopping:
            self._channels.wait(0 if more else self._trace.patience(self._group.interval))
            self._turn()
            more = self._draft_ahead()

    def _calibrate(self) -> None:
        """Measures what the controller has to know and no earlier start has left."""
        controller, stream = self._controller, self._streams[0]
        if controller.calibrated or not Calibration.fits(self._info.max_model_len):
            say_expected(controller)
            return
        calibration = Calibration(controller.choices, self._config.stages, self._info.vocab_size, controller.width)
        self._calibrating = True
        for run in calibration.runs(self._config.prefill_chunk):
            self._stats = StatsRecorder()
            run.begins(time.monotonic())
            self._begin(stream, Request(None, run.request), 0, run)
            self._serve_while(lambda: stream.request is not None)
            if self._stopping:
                return
            run.ended(stream.schedule.tokens, self._stats.draft_seconds)
            if self._queue.waiting():
                calibration.hurry()
        self._calibrating = False
        self._stats = StatsRecorder()
        measured = calibration.measured()
        controller.calibrate(measured)
        save_measured(self._config, measured)
        say_expected(controller)
        self._start_next()

    def _turn(self) -> None:
        """Handles everything that has arrived, samples first: they are on the critical path."""
        while (message := self._channels.result()) is not None:
            self._on_result(message)
        self._start_next()  # who waits for a prompt that is being computed may have it by now
        while (request := self._channels.request()) is not None:
            self._on_request(*request)
        if self._group.check(time.monotonic(), self._awaited):
            for client in {request.client for request in self._requests()} - {None}:
                self._answer(client, KeepAlive())
        self._trace.turn()
        for client in self._channels.vanished():
            self._forget(client)

    def _awaited(self) -> int | None:
        """The oldest frame that is alive; where requests run without any, a negative number; None if none runs.

        It changes with every verified token: a look may always fall between a sample and the drafts that follow.
        """
        if not self._running:
            return None
        oldest = [stream.schedule.oldest for stream in self._running if stream.schedule.in_flight]
        return min(oldest, default=-1 - sum(stream.schedule.verified for stream in self._running))

    # --- from the stages ---

    def _on_result(self, message: FromStage) -> None:
        if isinstance(message, Sample):
            started, announced = time.perf_counter_ns(), self._channels.announce_ns
            self._on_sample(message)
            if message.tap is not None:
                self._drafters[message.sequence].tap(message.tap)
            self._stats.committed(time.perf_counter_ns() - started - (self._channels.announce_ns - announced))
        elif isinstance(message, Compiled):
            self._queue.compiled(message.number)
            self._start_next()
        elif isinstance(message, Pong):
            for client, number in self._group.pong(message):
                self._channels.answer(client, self._status(number))
        elif isinstance(message, Tap):
            self._drafters[message.sequence].tap(message)
        elif isinstance(message, Passage):
            self._trace.passed(message)
        elif isinstance(message, Failure):
            self._group.fail(message)
        else:
            raise OutOfStep(f"stage {message.stage} has started a second time")

    def _on_sample(self, sample: Sample) -> None:
        stream = self._streams[sample.sequence]
        schedule = stream.schedule
        if not schedule.concerns(sample):
            return  # it followed a rejected draft, or belongs to a request that has ended
        full = sum(len(running.schedule.in_flight) for running in self._running) >= self._config.stages
        number = schedule.oldest
        step = schedule.sample(sample)
        stream.refill()
        stream.prompt_logprobs += sample.prompt_logprobs
        self._announce(step.control)
        self._stats.sampled(number, full=full and bool(step.tokens))
        self._trace.left(number, stream, step)
        if step.tokens:
            self._stats.verified(stream.frame_left(step, alone=self._alone))
            stream.rank(step, sample.probabilities)
            self._give(stream, step, sample.logprobs)
            stream.follow(step)
            self._decide(stream, step)
        if step.finish is not None:
            self._finish(stream)
        elif sample.error is not None:
            self._give_up(stream, sample.error)

    def _decide(self, stream: Stream, step: Step) -> None:
        """What drafts from here on, now that the tokens of `step` are verified."""
        assert stream.session is not None
        now, tokens = time.monotonic(), len(step.tokens)
        stream.session.sampled(now, stream.cycles, tokens, rejected=step.rejected, alone=self._alone)
        if stream.set_shape(crowded=len(self._running) >= self._config.stages > 1):
            self._announce()  # a frame that has waited for drafts may be full now
        self._observe()

    def _give(self, stream: Stream, step: Step, logprobs: Sequence[TokenLogprobs] = ()) -> None:
        """Sends the client what the step has verified."""
        assert stream.request is not None
        schedule = stream.schedule
        message = Tokens(
            id=stream.request.generate.id,
            tokens=list(step.tokens),
            logprobs=list(logprobs[: len(step.tokens)]),
            finish=step.finish,
            counts=schedule.counts if step.finish is not None else None,
            beginning=stream.beginning() if 0 < schedule.outputs == len(step.tokens) else None,
            prompt_logprobs=stream.prompt_logprobs,
        )
        stream.prompt_logprobs = []
        self._answer(stream.request.client, message)

    def _give_up(self, stream: Stream, error: str) -> None:
        """The request cannot go on; the engine can."""
        assert stream.request is not None
        self._announce(stream.schedule.abort().control)
        self._answer(stream.request.client, Failed(stream.request.generate.id, error))
        self._finish(stream)

    def _answer(self, client: bytes | None, message: FromEngine) -> None:
        if client is not None:
            self._channels.answer(client, message)

    def _observe(self) -> None:
        """Has the stages send hidden states while a request needs them, and only then."""
        wanted = self._drafters[0].anchors if any(stream.listening for stream in self._streams) else ()
        if wanted != self._observed:
            self._observed = wanted
            self._channels.announce([Observe(wanted)])

    # --- frames and drafts ---

    def _announce(self, control: Sequence[Open | Rollback] = ()) -> dict[int, Claim]:
        """Sends `control`, and every frame that there is a credit for; returns what is claimed then."""
        messages: list[ToStage] = list(control)
        claims = self._claims()
        while (slot := self._credits.grant(claims)) is not None:
            stream = self._streams[slot]
            frame = stream.cut()
            messages.append(frame)
            self._trace.entered(frame, stream)
            claims[slot] = stream.claim(contested=not self._alone)
        if messages:
            self._channels.announce(messages)
        return claims

    def _claims(self) -> dict[int, Claim]:
        return {stream.slot: stream.claim(contested=not self._alone) for stream in self._running}

    @property
    def _alone(self) -> bool:
        """Whether one request runs."""
        return len(self._running) == 1

    def _draft_ahead(self) -> bool:
        """Makes one draft if any is wanted, and returns whether there is more to do; a sample may be waiting first."""
        more = self._advance()
        for slot in self._credits.drafting(self._claims()):
            started = time.perf_counter_ns()
            drafted = self._streams[slot].draft()
            self._stats.drafted(time.perf_counter_ns() - started)
            claims = self._announce()
            if drafted:
                return more or bool(self._credits.drafting(claims))
        return more

    def _advance(self) -> bool:
        """Lets one drafter do a little of its work ahead, each in its turn; returns whether there was any to do."""
        for slot in self._advance_turns.order(stream.slot for stream in self._running):
            if self._drafters[slot].advance():
                self._advance_turns.took(slot)
                return True
        return False

    # --- from the clients ---

    def _on_request(self, client: bytes, message: ToEngine) -> None:
        if isinstance(message, Probe):
            self._group.probe(client, message.number)
        elif isinstance(message, Watch):
            self._trace.watch(client, self._running if message.snapshot else ())
        elif isinstance(message, Abort):
            self._abort(client, message.id)
        else:
            if (error := refusal(message, self._info.max_model_len, self._info.vocab_size)) is not None:
                self._channels.answer(client, Failed(message.id, error))
                return
            if (todo := self._queue.arrived(client, message)) is not None:
                self._drafters[0].prepare(message.sampling)
                self._channels.announce([todo])
            self._start_next()

    def _start_next(self) -> None:
        """Begins as many requests as there are idle slots for."""
        while not self._calibrating and self._queue.in_line and len(self._running) < len(self._streams):
            idle = [stream.slot for stream in self._streams if stream.request is None]
            if (request := self._queue.next(len(idle), self._seating.fits, self._seating.held_back)) is None:
                return
            self._start(request, idle)

    def _start(self, request: Request, idle: Sequence[int]) -> None:
        """Begins a request in the idle slot that suits it best."""
        session = self._controller.begin(request.generate.max_tokens)
        place, forgotten = self._seating.make_room(request, self._seating.choose(request, idle, session))
        self._announce(forgotten)
        self._stats.looked_up(len(request.generate.prompt), place.reused)
        source = None if place.source == place.slot else self._streams[place.source]
        self._begin(self._streams[place.slot], request, place.reused, session, source)

    def _begin(
        self, stream: Stream, request: Request, reused: int, session: Deciding, source: Stream | None = None
    ) -> None:
        self._running.append(stream)
        opening = stream.begin(request, reused, session, source)
        self._trace.began(stream)
        self._observe()
        self._announce([opening])
        stream.inform(source)

    def _abort(self, client: bytes, identifier: str) -> None:
        for stream in self._running:
            if stream.request is not None and stream.request.named(client, identifier):
                step = stream.schedule.abort()
                self._announce(step.control)
                self._give(stream, step)
                self._finish(stream)
                return
        for request in self._queue.waiting():
            if request.named(client, identifier):
                self._queue.leave(request)
                self._answer(client, Tokens(identifier, [], finish="abort", counts=SpeculationCounts()))
                return

    def _requests(self) -> list[Request]:
        """Those that run or wait."""
        running = [stream.request for stream in self._running if stream.request is not None]
        return [*running, *self._queue.waiting()]

    def _forget(self, client: bytes) -> None:
        """A client has gone: nobody would read its answers. Those that wait go first, so that none of them starts."""
        for request in reversed(self._requests()):
            if request.client == client:
                self._abort(client, request.generate.id)

    def _finish(self, stream: Stream) -> None:
        self._stats.ended(stream.schedule.counts)
        self._trace.ended(stream.slot, stream.schedule.counts)
        stream.end()
        self._running.remove(stream)
        self._start_next()

    def _status(self, number: int) -> Status:
        schedules = [stream.schedule for stream in self._running]
        return Status(
            number=number,
            info=self._info,
            running=len(schedules),
            waiting=len(self._queue.waiting()),
            stats=self._stats.report(
                [schedule.counts for schedule in schedules],
                announce_ns=self._channels.announce_ns,
                drafter_failures=sum(drafter.failures for drafter in self._drafters),
            ),
            controller=self._controller.status(),
            stages=self._group.timings,
            credits={kind: sum(schedule.count(kind) for schedule in schedules) for kind in FRAME_KINDS},
            dropped=self._channels.dropped,
            kv=kv_use(self._config.kv_positions, self._streams),
            calibrating=self._calibrating,
            models=self._channels.figures(),
        )
