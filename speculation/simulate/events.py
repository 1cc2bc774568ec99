"""Decoding as events, by every method: the real schedule and look-ahead, with everything else timed."""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from speculation.decisions.drafts.steps import Step
from speculation.decisions.drafts.tree import Draft, Guess
from speculation.decisions.drafts.worth import Acceptance
from speculation.decisions.policy import FramePolicy, draft_then_verify, pipelined
from speculation.decisions.schedule import Schedule
from speculation.decisions.shapes.chooser import Shapes
from speculation.simulate.pipeline import Pipeline, Prediction
from speculation.simulate.stages import Events, Stages
from workers.decisions.made_up import MadeUpText
from workers.shared.frames import Frame, Move
from workers.shared.messages import Open, Sample, Sampling

RESCUE = 0.42  # share of what is missed that twice as many candidates find
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
    rescue: float = RESCUE,
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
    text = _Rehearsal(MadeUpText(_VOCABULARY, acceptance or 0.0, rescue), seed * _SPACING, breadth)
    return decode(pipeline, text, [0], tokens, policy, drafts=acceptance is not None)


class DraftedText(Protocol):
    """What is decoded, and what is drafted for it."""

    def token(self, position: int, before: int) -> int:
        """The token at a position of the text, behind the one `before` it."""

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        """The draft behind `tokens`, of which the last may be drafts, if there is one."""

    def verified(self, tokens: Sequence[int], count: int) -> None:
        """`tokens[:count]` are final by now."""


def decode(
    pipeline: Pipeline,
    text: DraftedText,
    prompt: Sequence[int],
    tokens: int,
    policy: FramePolicy,
    *,
    drafts: bool = True,
    chooser: Shapes | None = None,
) -> Prediction:
    """Decodes `tokens` tokens behind a prompt; the time before the first of them does not count.

    A `chooser` says which of the policy's shapes frames have, as it does in the engine, and goes on from what it knows.
    """
    return _Simulation(pipeline, text, policy, drafts, chooser).run(prompt, tokens)


@dataclass
class _Rehearsal:
    text: MadeUpText
    offset: int  # of the text, positions
    breadth: int  # most candidates

    def token(self, position: int, before: int) -> int:
        return self.text.token(self.offset + position, before)

    def draft(self, tokens: Sequence[int]) -> Draft | None:
        guess = self.text.guess(self.offset + len(tokens), tokens[-1], self.breadth)
        return Draft(guess.candidates, guess.chances[0], chances=guess.chances)

    def verified(self, tokens: Sequence[int], count: int) -> None:
        pass


@dataclass
class _Simulation:
    pipeline: Pipeline
    text: DraftedText
    policy: FramePolicy
    drafts: bool
    chooser: Shapes | None
    schedule: Schedule = field(init=False)
    stages: Stages = field(init=False)
    events: Events = field(default_factory=Events)
    inbox: deque[Sample] = field(default_factory=deque)  # samples that rank 0 has not handled yet
    rank_busy: bool = False
    silent: bool = False  # there is no draft until something happens
    prompt: int = 0  # tokens
    counted: int = 0  # cycles at the last sample with tokens
    first_at: float = 0.0
    last_at: float = 0.0

    def run(self, prompt: Sequence[int], tokens: int) -> Prediction:
        self.prompt = len(prompt)
        self.schedule = Schedule(0, self.pipeline.stages, self.policy, self.prompt, itertools.count())
        self.stages = Stages(self.pipeline.stages, self.events, self)
        if self.chooser is not None:
            self.chooser.begin()
            self.schedule.shape = self.chooser.current
        self.stages.announce([Open(0, self.schedule.epoch, self.prompt, Sampling(seed=0))])
        self.schedule.start(prompt, tokens)
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
        elif self.drafts and not self.silent and self.schedule.wants_draft():
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
        self.silent = False
        if room := self.schedule.room:
            guesses = [(node, node.guess.draft) for node in self.schedule.parents if node.guess is not None]
            self.schedule.widen(Acceptance().best(guesses, room))
        self.stages.announce([*step.control, *self.schedule.announce()])
        if step.tokens:
            self._learn(step)
            self.last_at = self.events.now
            self.first_at = self.first_at or self.events.now

    def _learn(self, step: Step) -> None:
        schedule, refilled = self.schedule, self.schedule.counts.cycles - self.counted >= self.pipeline.stages
        self.counted = schedule.counts.cycles
        for count in range(schedule.verified - len(step.tokens) + 1, schedule.verified + 1):
            self.text.verified(schedule.tokens, count)
        if self.chooser is not None and self.first_at:
            verdicts = [place < len(step.right) for place in range(len(step.tokens))]
            guesses = zip(step.guesses, step.tokens, strict=True)
            ranks = [None if guess is None else guess.draft.rank(token) for guess, token in guesses]
            seconds = (self.events.now - self.last_at) / 1000
            schedule.shape = self.chooser.sampled(seconds, verdicts, ranks, refilled=refilled)
            self.stages.announce(schedule.announce())

    def _drafted(self) -> None:
        found = []
        for leaf in self.schedule.leaves:
            if (draft := self.text.draft(self.schedule.text(leaf))) is not None:
                leaf.guess = Guess(draft, leaf.position - self.schedule.verified + 2)
                found.append((leaf, draft))
        if found:
            self.schedule.grow(Acceptance().best(found, self.schedule.most))
        else:
            self.silent = True
            self.schedule.flush()
        self.stages.announce(self.schedule.announce())

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
        if frame.position < self.prompt:
            first = len(frame.tokens) - 1
        if first is None:
            return Sample(0, frame.epoch, frame.end)
        row: int | None = first
        start, tokens = frame.place(first).position + 1, list[int]()
        while row is not None:
            tokens.append(self.text.token(start + len(tokens), frame.tokens[row]))
            row = frame.follower(frame.place(row), tokens[-1])
        return Sample(0, frame.epoch, start, tuple(tokens))

    def sampled(self, sample: Sample) -> None:
        self.inbox.append(sample)
        self._turn()
