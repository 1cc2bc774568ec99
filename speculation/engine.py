"""The engine: rank 0's loop around the request queue, the schedule and the drafter."""

import itertools
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from speculation.channels import Channels
from speculation.decisions.admission import refusal
from speculation.decisions.governor import Governor
from speculation.decisions.health import PingRounds
from speculation.decisions.policy import FramePolicy
from speculation.decisions.roll_call import RollCall
from speculation.decisions.schedule import Schedule, Step
from speculation.decisions.slots import choose_slot
from speculation.drafters.base import Draft, Drafter, Start
from workers.shared.config import EngineConfig
from workers.shared.errors import ConfigError, OutOfStep, PeerLost
from workers.shared.fingerprint import disagreement, engine_fingerprint
from workers.shared.logs import tell
from workers.shared.messages import (
    Abort,
    EngineInfo,
    Failed,
    Failure,
    FromStage,
    Generate,
    KeepAlive,
    Observe,
    Open,
    Ping,
    Pong,
    Probe,
    RankTimings,
    Ready,
    Sample,
    SpeculationCounts,
    Status,
    Tap,
    ToEngine,
    TokenLogprobs,
    Tokens,
)

_PING_INTERVAL = 1.0  # seconds
_LOOK_INTERVAL = 1.0  # seconds between two looks at who has left, which would cost too much in every turn
_LAST_WORDS = 0.5  # seconds that the reason of a stage that has left may take to arrive
_FIRST_NUMBER_BITS = 62


@dataclass(frozen=True)
class _Request:
    client: bytes  # address on the bus
    generate: Generate


class Engine:
    """Serves one request at a time, first come first served, with every stage at work on it."""

    def __init__(
        self,
        config: EngineConfig,
        vocab_size: int,
        policy: FramePolicy,
        drafter: Drafter,
        channels: Channels,
        governor: Governor,
    ) -> None:
        """`governor` is told how decoding goes; the drafter may ask it (`GovernedDrafter`)."""
        self._config = config
        self._drafter = drafter
        self._channels = channels
        # Starting anywhere makes a frame that a stage still sends for an earlier rank 0 one that nobody expects.
        numbers = itertools.count(secrets.randbits(_FIRST_NUMBER_BITS))
        self._schedules = [
            Schedule(slot, config.stages, policy, config.prefill_chunk, numbers) for slot in range(config.sequences)
        ]
        self._schedule = self._schedules[0]  # of the slot that has the pipeline
        self._least_recent = list(range(config.sequences))  # slots, the one used longest ago first
        self._queue: deque[_Request] = deque()
        self._running: _Request | None = None
        self._pings = PingRounds(config.stages, _PING_INTERVAL, config.stall_timeout)
        self._ended = SpeculationCounts()  # of the requests that have ended
        self._full_cycles = 0
        self._full_cycle_ns = 0
        self._last_sample_ns = 0
        self._governor = governor
        self._decode_ns = 0
        self._commit_ns = 0
        self._drafts = 0
        self._draft_ns = 0
        self._open_drafts: dict[int, Draft] = {}  # those not verified yet, by position
        self._next_look = 0.0  # monotonic seconds
        self._stopping = False
        self._info = EngineInfo(
            stages=config.stages,
            split=config.split,
            drafter=config.drafter.name,
            delta=config.delta,
            max_model_len=config.max_model_len,
            vocab_size=vocab_size,
            rehearsal=config.rehearsal,
            emulated=config.emulate,
            num_speculative_tokens=config.drafter.num_speculative_tokens,
            fingerprint=engine_fingerprint(config),
        )

    def stop(self) -> None:
        """Makes `run` return soon; safe to call from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Waits for every stage to be ready, then serves until stopped. Until then stages may come and go.

        Raises `PeerLost`, `OutOfStep` or `ConfigError` when the group cannot go on.
        """
        try:
            self._await_stages()
            self._channels.announce([Observe(self._drafter.anchors)])
            more = False
            while not self._stopping:
                self._channels.wait(0 if more else _PING_INTERVAL)
                self._turn()
                more = self._drafter.advance()
                more |= self._draft()
        finally:
            self._channels.dismiss()

    def _await_stages(self) -> None:
        roll = RollCall(self._config.endpoints.control, self._config.ready_timeout, time.monotonic())
        while roll.missing and not self._stopping:
            self._channels.wait(1.0)
            if (reminder := roll.look(time.monotonic())) is not None:
                tell(f"rank 0: {reminder}")
            # One that has left is a straggler of an earlier rank 0, or will be started again by whoever supervises it.
            roll.missing.update(self._channels.departed())
            while (message := self._channels.result()) is not None:
                if isinstance(message, Ready):
                    self._check_belongs(message)
                    roll.missing.discard(message.stage)
                    tell(
                        f"stage {message.stage}: {message.layers} layers, "
                        f"{message.weight_bytes / 2**20:.0f} MiB weights, {message.kv_bytes / 2**20:.0f} MiB KV, "
                        f"ready in {message.seconds:.1f} s"
                    )
                elif isinstance(message, Failure):
                    self._fail(message)

    def _check_belongs(self, ready: Ready) -> None:
        """Raises `ConfigError` where a stage was started with other files, settings or another program."""
        mine, stage = self._info.fingerprint, f"stage {ready.stage}"
        if (difference := disagreement("rank 0", mine, stage, ready.fingerprint)) is not None:
            raise ConfigError(f"{stage} does not belong to this engine: {difference}")

    def _turn(self) -> None:
        """Handles everything that has arrived, samples first: they are on the critical path."""
        while (message := self._channels.result()) is not None:
            self._on_result(message)
        while (request := self._channels.request()) is not None:
            self._on_request(*request)
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_INTERVAL
            self._check_stages()
            for client in {request.client for request in self._requests()}:
                self._channels.answer(client, KeepAlive())
        for client in self._channels.vanished():
            self._forget(client)
        if (number := self._pings.due(now)) is not None:
            self._channels.announce([Ping(number)])

    def _check_stages(self) -> None:
        """Raises `PeerLost` where a stage has left, or the reason that the stage gave."""
        if not (departed := self._channels.departed()):
            return
        self._channels.wait(_LAST_WORDS)
        while (message := self._channels.result()) is not None:
            if isinstance(message, Failure):
                self._fail(message)
        raise PeerLost(f"stage {', '.join(map(str, departed))} has gone")

    # --- from the stages ---

    def _on_result(self, message: FromStage) -> None:
        if isinstance(message, Sample):
            started, announced = time.perf_counter_ns(), self._channels.announce_ns
            self._on_sample(message)
            self._commit_ns += time.perf_counter_ns() - started - (self._channels.announce_ns - announced)
        elif isinstance(message, Pong):
            for client, number in self._pings.pong(message):
                self._channels.answer(client, self._status(number))
        elif isinstance(message, Tap):
            self._drafter.tap(message)
        elif isinstance(message, Failure):
            self._fail(message)
        else:
            raise OutOfStep(f"stage {message.stage} reported ready a second time")

    def _on_sample(self, sample: Sample) -> None:
        if not self._schedule.concerns(sample):
            return  # it followed a rejected draft, or belongs to a request that has ended
        before = self._schedule.counts.cycles
        step = self._schedule.sample(sample)
        self._channels.announce(step.control)
        if step.tokens:
            self._time_cycle(step)
            self._governor.token(time.monotonic(), self._schedule.counts.cycles - before, len(step.tokens))
            self._rank(step, sample.probabilities)
            self._emit(step, sample.logprobs)
        if sample.error is not None and step.finish is None:
            self._give_up(sample.error)

    def _give_up(self, error: str) -> None:
        """The running request cannot go on; the engine can."""
        assert self._running is not None
        self._channels.announce(self._schedule.abort().control)
        self._channels.answer(self._running.client, Failed(self._running.generate.id, error))
        self._finish()

    def _rank(self, step: Step, probabilities: Sequence[float]) -> None:
        """What the drafter thought of the verified tokens, `probabilities` being what the target did."""
        counts = self._schedule.counts
        for place, token in enumerate(step.tokens):
            draft = self._open_drafts.pop(self._schedule.verified - len(step.tokens) + place, None)
            if draft is None:
                continue
            rank = draft.candidates.index(token) if token in draft.candidates else None
            counts.rank(rank)
            if draft.probabilities and probabilities:
                counts.compare(probabilities[place], 0.0 if rank is None else draft.probabilities[rank])

    def _time_cycle(self, step: Step) -> None:
        now = time.perf_counter_ns()
        if self._schedule.fresh > 1:  # the first is the prefill's
            self._decode_ns += now - self._last_sample_ns
        if step.full_cycle:
            self._full_cycles += 1
            self._full_cycle_ns += now - self._last_sample_ns
        self._last_sample_ns = now

    def _emit(self, step: Step, logprobs: Sequence[TokenLogprobs]) -> None:
        assert self._running is not None
        schedule = self._schedule
        message = Tokens(
            id=self._running.generate.id,
            tokens=list(step.tokens),
            logprobs=list(logprobs[: len(step.tokens)]),
            finish=step.finish,
            counts=schedule.counts if step.finish is not None else None,
            cached=schedule.reused if schedule.outputs == len(step.tokens) else 0,
        )
        self._channels.answer(self._running.client, message)
        if step.finish is not None:
            self._finish()
            return
        for count in range(schedule.verified - len(step.tokens) + 1, schedule.verified + 1):
            if step.rejected and count == schedule.verified:
                self._open_drafts.clear()
                self._drafter.rejected(count - 1, schedule.epoch)
            self._drafter.verified(schedule.tokens, count)

    def _draft(self) -> bool:
        """Makes a draft if one is wanted, and returns whether it did; a sample may be waiting before the next."""
        schedule = self._schedule
        if not schedule.wants_draft():
            return False
        started = time.perf_counter_ns()
        draft = self._drafter.draft(schedule.tokens)
        self._drafts += 1
        self._draft_ns += time.perf_counter_ns() - started
        if draft is None:
            self._channels.announce(schedule.flush().control)
            return False
        self._open_drafts[len(schedule.tokens)] = draft
        self._channels.announce(schedule.draft(draft.token).control)
        return True

    @staticmethod
    def _fail(failure: Failure) -> None:
        error = f"stage {failure.stage} failed: {failure.error}"
        raise ConfigError(error) if failure.permanent else PeerLost(error)

    # --- from the clients ---

    def _on_request(self, client: bytes, message: ToEngine) -> None:
        if isinstance(message, Probe):
            self._pings.probe(client, message.number)
        elif isinstance(message, Abort):
            self._abort(client, message.id)
        else:
            if (error := refusal(message, self._info.max_model_len, self._info.vocab_size)) is not None:
                self._channels.answer(client, Failed(message.id, error))
                return
            self._queue.append(_Request(client, message))
            self._start_next()

    def _start_next(self) -> None:
        if self._running is not None or not self._queue:
            return
        self._running = self._queue.popleft()
        generate = self._running.generate
        self._open_drafts.clear()
        self._governor.begin()
        slot, reused = choose_slot(self._schedules, self._least_recent, generate.prompt, self._drafter.kept)
        self._least_recent.remove(slot)
        self._least_recent.append(slot)
        schedule = self._schedule = self._schedules[slot]
        self._drafter.begin(generate.prompt, generate.sampling, Start(slot, schedule.epoch, reused))
        opening = Open(slot, schedule.epoch, len(generate.prompt), generate.sampling, reused)
        stop_tokens, generated = frozenset(generate.stop_tokens), generate.generated
        step = schedule.start(generate.prompt, generate.max_tokens, stop_tokens, reused, generated)
        self._channels.announce([opening, *step.control])
        for count in range(len(generate.prompt) + 1, schedule.verified + 1):
            self._drafter.verified(schedule.tokens, count)

    def _abort(self, client: bytes, identifier: str) -> None:
        if self._running is not None and self._is(self._running, client, identifier):
            step = self._schedule.abort()
            self._channels.announce(step.control)
            ended = Tokens(identifier, [], finish=step.finish, counts=self._schedule.counts)
            self._channels.answer(client, ended)
            self._finish()
            return
        for request in self._queue:
            if self._is(request, client, identifier):
                self._queue.remove(request)
                self._channels.answer(client, Tokens(identifier, [], finish="abort", counts=SpeculationCounts()))
                return

    def _requests(self) -> list[_Request]:
        """Those that run or wait."""
        return [*([] if self._running is None else [self._running]), *self._queue]

    def _forget(self, client: bytes) -> None:
        """A client has gone: nobody would read its answers. Those that wait go first, so that none of them starts."""
        for request in reversed(self._requests()):
            if request.client == client:
                self._abort(client, request.generate.id)

    @staticmethod
    def _is(request: _Request, client: bytes, identifier: str) -> bool:
        return request.client == client and request.generate.id == identifier

    def _finish(self) -> None:
        self._ended.add(self._schedule.counts)
        self._running = None
        self._start_next()

    def _status(self, number: int) -> Status:
        counts = SpeculationCounts()
        counts.add(self._ended)
        if self._running is not None:
            counts.add(self._schedule.counts)
        return Status(
            number=number,
            info=self._info,
            running=int(self._running is not None),
            waiting=len(self._queue),
            counts=counts,
            full_cycles=self._full_cycles,
            full_cycle_ns=self._full_cycle_ns,
            drafts=self._drafts,
            draft_ns=self._draft_ns,
            quiet=self._governor.quiet and not self._config.drafter.always,
            stages=self._pings.timings,
            dropped=self._channels.dropped,
            rank=RankTimings(self._decode_ns, self._commit_ns, self._channels.announce_ns),
        )
