"""Decoding as events, by every method: the real schedule and look-ahead, with everything else timed."""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from speculation.decisions.drafts.steps import Step
from speculation.decisions.drafts.tree import Draft, Node
from speculation.decisions.drafts.worth import Acceptance
from speculation.decisions.policy import FramePolicy, draft_then_verify, pipelined
from speculation.decisions.schedule import Schedule
from speculation.simulate.pipeline import Pipeline, Prediction
from speculation.simulate.stages import Events, Stages
from workers.decisions.made_up import MadeUpText
from workers.shared.frames import Frame, Move
from workers.shared.messages import Open, Sample, Sampling

_PROMPT = 1  # tokens; what is measured begins after the first sample
_VOCABULARY = 1000
_SPACING = 1_000_003  # positions between the texts of two seeds


def simulate(
    pipeline: Pipeline,
    acceptance: float | None,
    *,
    delta: int = 0,
    drafts: int = 0,
    width: int = 1,
    breadth: int = 1,
    rescue: float = 0.42,
    tokens: int = 2000,
    seed: int = 0,
) -> Prediction:
    """Decodes `tokens` tokens; `acceptance` is that of every first draft, None decodes without drafts.

    With `drafts`, they are drafts a frame of draft-then-verify; 0 is `width` tokens a frame, and frames in every stage.
    A frame holds up to `breadth` drafts for each position; with twice as many, the share `rescue` of what was missed
    would be found. Raises `ValueError` where there is nothing to measure or the acceptance is no probability.
    """
    if tokens < 2:
        raise ValueError("tokens: at least 2, as the time after the first is measured")
    if acceptance is not None and not 0 <= acceptance <= 1:
        raise ValueError("acceptance: must be a probability, 0 to 1")
    count = pipeline.stages
    width = width if acceptance is not None else 1  # nothing would fill a frame
    policy = draft_then_verify(count, drafts, breadth) if drafts else pipelined(count, delta, width, breadth)
    text = MadeUpText(_VOCABULARY, acceptance or 0.0, rescue)
    return _Simulation(pipeline, text, policy, seed * _SPACING, acceptance is not None).run(tokens)


@dataclass
class _Simulation:
    pipeline: Pipeline
    text: MadeUpText
    policy: FramePolicy
    offset: int  # of the text, positions
    drafts: bool
    schedule: Schedule = field(init=False)
    stages: Stages = field(init=False)
    events: Events = field(default_factory=Events)
    inbox: deque[Sample] = field(default_factory=deque)  # samples that rank 0 has not handled yet
    rank_busy: bool = False
    first_at: float = 0.0
    last_at: float = 0.0

    def __post_init__(self) -> None:
        self.schedule = Schedule(0, self.pipeline.stages, self.policy, _PROMPT, itertools.count())
        self.stages = Stages(self.pipeline.stages, self.events, self)

    def run(self, tokens: int) -> Prediction:
        self.stages.announce([Open(0, self.schedule.epoch, _PROMPT, Sampling(seed=0))])
        self.schedule.start([0] * _PROMPT, tokens)
        self.stages.announce(self.schedule.announce())
        before = [0.0] * self.pipeline.stages
        while self.schedule.running:
            was = self.first_at
            self.events.next()
            if self.first_at != was:
                before = [stage.busy for stage in self.stages.all]
        counts = self.schedule.counts
        verified = counts.accepted + counts.rejected
        elapsed = self.last_at - self.first_at
        return Prediction(
            tokens_per_second=1000 * (tokens - 1) / elapsed,
            tokens_per_cycle=(tokens - 1) / counts.cycles,
            acceptance=counts.accepted / verified if verified else 0.0,
            busy=tuple(
                min(1.0, (stage.busy - start) / elapsed) for stage, start in zip(self.stages.all, before, strict=True)
            ),
        )

    # --- rank 0, as in speculation.engine: all samples that have arrived, then one draft ---

    def _turn(self) -> None:
        if self.rank_busy or not self.schedule.running:
            return
        if self.inbox:
            self._work(self.pipeline.commit_ms, self._commit)
        elif self.drafts and self.schedule.wants_draft():
            self._work(self.pipeline.draft_ms, self._drafted)

    def _work(self, duration: float, then: Callable[[], None]) -> None:
        def done() -> None:
            self.rank_busy = False
            then()
            self._turn()

        self.rank_busy = True
        self.events.after(duration, done)

    def _commit(self) -> None:
        step: Step = self.schedule.sample(self.inbox.popleft())
        if room := self.schedule.room:
            self.schedule.widen(Acceptance().best(self._found(self.schedule.parents), room))
        self.stages.announce([*step.control, *self.schedule.announce()])
        if step.tokens:
            self.last_at = self.events.now
            self.first_at = self.first_at or self.events.now

    def _drafted(self) -> None:
        self.schedule.grow(Acceptance().best(self._found(self.schedule.leaves), self.policy.breadth))
        self.stages.announce(self.schedule.announce())

    def _found(self, nodes: Sequence[Node]) -> list[tuple[Node, Draft]]:
        found = []
        for node in nodes:
            guess = self.text.guess(self.offset + node.position + 1, node.token, self.policy.breadth)
            found.append((node, Draft(guess.candidates, guess.chances[0], chances=guess.chances)))
        return found

    # --- what surrounds the stages ---

    def send(self, channel: str, stage: int, arrive: Callable[[], None]) -> None:
        self.events.after(self.pipeline.hop_ms if channel == "data" else self.pipeline.control_ms, arrive)

    def service(self, stage: int, frame: Frame, alive: bool) -> float:
        return self.pipeline.service_ms(stage, len(frame.tokens)) if alive else self.pipeline.overhead_ms

    def move(self, stage: int, moves: Sequence[Move]) -> None:
        pass

    def compute(self, stage: int, frame: Frame, first: int | None) -> Sample | None:
        if stage + 1 < self.pipeline.stages:
            return None
        if first is None:
            return Sample(0, frame.epoch, frame.end)
        row: int | None = first
        start, tokens = frame.place(first).position + 1, list[int]()
        while row is not None:
            tokens.append(self.text.token(self.offset + start + len(tokens), frame.tokens[row]))
            row = frame.follower(frame.place(row), tokens[-1])
        return Sample(0, frame.epoch, start, tuple(tokens))

    def sampled(self, sample: Sample) -> None:
        self.inbox.append(sample)
        self._turn()
