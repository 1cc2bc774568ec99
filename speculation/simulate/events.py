"""Decoding as events, by every method: the real schedule and look-ahead, with everything else timed."""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from speculation.decisions.policy import FramePolicy, draft_then_verify, pipelined
from speculation.decisions.schedule import Schedule, Step
from speculation.simulate.pipeline import Pipeline, Prediction
from workers.decisions.lookahead import Lookahead
from workers.shared.frames import Frame
from workers.shared.messages import Open, Rollback, Sample, Sampling

_PROMPT = 1  # tokens; what is measured begins after the first sample
_RIGHT, _WRONG = 1, 0  # tokens: the target always says `_RIGHT`


@dataclass(eq=False)  # a stage is itself, whatever it holds
class _Stage:
    lookahead: Lookahead
    inputs: int = 0  # hidden states that have arrived
    frame: Frame | None = None  # taken from the look-ahead, its input not here yet
    computing: bool = False
    busy_ms: float = 0.0


def simulate(
    pipeline: Pipeline,
    acceptance: float | None,
    *,
    delta: int = 0,
    drafts: int = 0,
    width: int = 1,
    tokens: int = 2000,
    seed: int = 0,
) -> Prediction:
    """Decodes `tokens` tokens; `acceptance` is that of every draft, None decodes without drafts.

    With `drafts`, they are drafts a frame of draft-then-verify; 0 is `width` tokens a frame, and frames in every stage.
    Raises `ValueError` where there is nothing to measure or the acceptance is no probability.
    """
    if tokens < 2:
        raise ValueError("tokens: at least 2, as the time after the first is measured")
    if acceptance is not None and not 0 <= acceptance <= 1:
        raise ValueError("acceptance: must be a probability, 0 to 1")
    count = pipeline.stages
    width = width if acceptance is not None else 1  # nothing would fill a frame
    policy = draft_then_verify(count, drafts) if drafts else pipelined(count, delta, width)
    return _Simulation(pipeline, acceptance, policy, random.Random(seed)).run(tokens)


@dataclass
class _Simulation:
    pipeline: Pipeline
    acceptance: float | None
    policy: FramePolicy
    rng: random.Random
    now: float = 0.0
    schedule: Schedule = field(init=False)
    stages: list[_Stage] = field(init=False)
    inbox: deque[Sample] = field(default_factory=deque)  # samples that rank 0 has not handled yet
    rank_busy: bool = False
    first_at: float = 0.0
    last_at: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    order: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.schedule = Schedule(0, self.pipeline.stages, self.policy, _PROMPT, itertools.count())
        self.stages = [_Stage(Lookahead(f"stage {index}")) for index in range(self.pipeline.stages)]

    def run(self, tokens: int) -> Prediction:
        self._announce([Open(0, self.schedule.epoch, _PROMPT, Sampling(seed=0))])
        self.schedule.start([_RIGHT] * _PROMPT, tokens)
        self._announce(self.schedule.announce())
        before = [0.0] * len(self.stages)
        while self.schedule.running:
            self.now, _, action = heapq.heappop(self.events)
            was = self.first_at
            action()
            if self.first_at != was:
                before = [stage.busy_ms for stage in self.stages]
        counts = self.schedule.counts
        verified = counts.accepted + counts.rejected
        elapsed = self.last_at - self.first_at
        return Prediction(
            tokens_per_second=1000 * (tokens - 1) / elapsed,
            tokens_per_cycle=(tokens - 1) / counts.cycles,
            acceptance=counts.accepted / verified if verified else 0.0,
            busy=tuple(
                min(1.0, (stage.busy_ms - start) / elapsed) for stage, start in zip(self.stages, before, strict=True)
            ),
        )

    def _after(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.order), action))

    # --- rank 0, as in speculation.engine: all samples that have arrived, then one draft ---

    def _announce(self, messages: Sequence[Frame | Open | Rollback]) -> None:
        for message in messages:
            for stage in self.stages:
                self._after(self.pipeline.control_ms, partial(self._hear, stage, message))

    def _turn(self) -> None:
        if self.rank_busy or not self.schedule.running:
            return
        if self.inbox:
            self._work(self.pipeline.commit_ms, self._commit)
        elif self.acceptance is not None and self.schedule.wants_draft():
            self._work(self.pipeline.draft_ms, self._drafted)

    def _work(self, duration: float, then: Callable[[], None]) -> None:
        def done() -> None:
            self.rank_busy = False
            then()
            self._turn()

        self.rank_busy = True
        self._after(duration, done)

    def _commit(self) -> None:
        step: Step = self.schedule.sample(self.inbox.popleft())
        self._announce([*step.control, *self.schedule.announce()])
        if step.tokens:
            self.last_at = self.now
            self.first_at = self.first_at or self.now

    def _drafted(self) -> None:
        assert self.acceptance is not None
        token = _RIGHT if self.rng.random() < self.acceptance else _WRONG
        self.schedule.draft(token)
        self._announce(self.schedule.announce())

    # --- stages ---

    def _hear(self, stage: _Stage, message: Frame | Open | Rollback) -> None:
        stage.lookahead.hear(message)
        self._start(stage)

    def _start(self, stage: _Stage) -> None:
        if stage.computing:
            return
        stage.frame = stage.frame or stage.lookahead.pop()
        first = stage is self.stages[0]
        if stage.frame is None or not (first or stage.inputs):
            return
        frame, stage.frame, stage.computing = stage.frame, None, True
        stage.inputs -= not first
        alive = stage.lookahead.admit(frame)
        index = self.stages.index(stage)
        duration = self.pipeline.service_ms(index, len(frame.tokens)) if alive else self.pipeline.overhead_ms
        stage.busy_ms += duration
        self._after(duration, partial(self._finish, index, frame, alive))

    def _finish(self, index: int, frame: Frame, alive: bool) -> None:
        stage = self.stages[index]
        stage.computing = False
        if index + 1 < len(self.stages):
            self._after(self.pipeline.hop_ms, partial(self._arrive, self.stages[index + 1]))
        elif alive:
            sample = Sample(0, frame.epoch, frame.position + 1, _sampled_after(frame))
            stage.lookahead.sampled(frame, sample)
            self._after(self.pipeline.control_ms, partial(self._sampled, sample))
        self._start(stage)

    def _arrive(self, stage: _Stage) -> None:
        stage.inputs += 1
        self._start(stage)

    def _sampled(self, sample: Sample) -> None:
        self.inbox.append(sample)
        self._turn()


def _sampled_after(frame: Frame) -> tuple[int, ...]:
    """A token after each of the frame's, up to the first that is not the draft in its place."""
    drafts = frame.tokens[1:]
    right = next((place for place, draft in enumerate(drafts) if draft != _RIGHT), len(drafts))
    return (_RIGHT,) * (right + 1)
