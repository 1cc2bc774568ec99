"""One KV slot at work: a request, its schedule, its drafter, and the drafts that are not verified yet."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from speculation.decisions.controller import Controller
from speculation.decisions.credits import Claim
from speculation.decisions.drafts.steps import Step
from speculation.decisions.drafts.tree import Guess, Node
from speculation.decisions.drafts.worth import Acceptance
from speculation.decisions.policy import FramePolicy
from speculation.decisions.schedule import Schedule
from speculation.decisions.shapes.chooser import ShapeOfFrames
from speculation.drafters.base import PENDING, Deciding, Draft, Drafter, Start
from workers.shared.config import EngineConfig
from workers.shared.frames import Frame
from workers.shared.messages import Beginning, Generate, Open, TokenLogprobs
from workers.shared.model_files.layers import beginnings_of


@dataclass(frozen=True)
class Request:
    """What a client has asked for."""

    client: bytes | None  # address on the bus; None: the engine's own request
    generate: Generate
    ahead: int = 0  # requests that would start before it when it arrived
    arrived_ns: int = field(default_factory=time.perf_counter_ns)

    def named(self, client: bytes, identifier: str) -> bool:
        """Whether it is the one that `client` calls `identifier`."""
        return self.client == client and self.generate.id == identifier


class Stream:
    """Serves the requests of one slot, one after the other. Without a request it is idle."""

    def __init__(self, schedule: Schedule, drafter: Drafter, shapes: ShapeOfFrames) -> None:
        """`shapes` says what a frame holds; those of the calibration hold what they do at the start."""
        self.slot = schedule.sequence
        self.schedule = schedule
        self.drafter = drafter
        self.request: Request | None = None
        self.prompt_logprobs: list[TokenLogprobs] = []  # those that the client has not been given
        self.session: Deciding | None = None
        self._begun_ns = 0
        self._last_sample_ns: int | None = None
        self._acceptance = Acceptance()
        self._shapes = shapes
        self._counted = 0  # cycles at the last sample with tokens
        self.cycles = 0  # between the last two of them

    def begin(self, request: Request, reused: int, session: Deciding, source: "Stream | None" = None) -> Open:
        """Takes a request on; returns what stages hear first.

        `reused` positions of its prompt are in the slot, or in that of `source`, to be copied.
        """
        generate, schedule = request.generate, self.schedule
        self.request = request
        self.prompt_logprobs = []
        self.session = session
        self._counted = 0
        self._begun_ns = time.perf_counter_ns()
        self._last_sample_ns = None
        self._acceptance = Acceptance()
        other = None if source is None else source.slot
        opening = Open(schedule.sequence, schedule.epoch, len(generate.prompt), generate.sampling, reused, other)
        stop_tokens, generated = frozenset(generate.stop_tokens), generate.generated
        copied = source is not None
        schedule.start(generate.prompt, generate.max_tokens, stop_tokens, reused, generated, copied=copied)
        self._shapes.begin(session.choice)
        self.set_shape()
        self.drafter.frames(schedule.shape.width)  # one that had failed has not heard of it
        return opening

    def inform(self, source: "Stream | None" = None) -> None:
        """Tells the drafter of the request, and of the output that an earlier engine has given.

        `source` is as in `begin`. By then the first frame is on its way.
        """
        assert self.request is not None
        generate, schedule = self.request.generate, self.schedule
        other = None if source is None else source.drafter
        start = Start(schedule.epoch, schedule.reused, self.session, other)
        self.drafter.begin(generate.prompt, generate.sampling, start)
        for count in range(schedule.verified - schedule.outputs + 1, schedule.verified + 1):
            self.drafter.verified(schedule.tokens, count)

    def end(self) -> None:
        """The request has ended."""
        if self.session is not None:
            self.session.end()
        self.request = self.session = None

    @property
    def listening(self) -> bool:
        """Whether hidden states are wanted."""
        return self.session is not None and self.session.listening

    def beginning(self) -> Beginning:
        """How the request came to its first token, which has just been verified."""
        assert self.request is not None
        return Beginning(
            cached=self.schedule.reused,
            ahead=self.request.ahead,
            queue_ns=self._begun_ns - self.request.arrived_ns,
            prefill_ns=time.perf_counter_ns() - self._begun_ns,
        )

    def since_last_sample(self) -> int | None:
        """Nanoseconds since this was last called for the request; None the first time."""
        last, self._last_sample_ns = self._last_sample_ns, time.perf_counter_ns()
        return None if last is None else self._last_sample_ns - last

    def rank(self, step: Step, probabilities: Sequence[float]) -> None:
        """Counts what the drafter thought of the verified tokens, `probabilities` being what the target did."""
        counts = self.schedule.counts
        for place, (token, guess) in enumerate(zip(step.tokens, step.guesses, strict=True)):
            if guess is None:
                continue
            draft, depth = guess
            right = place < len(step.right)
            counts.judge(depth, right=right)
            self._acceptance.verified(right=right, confidence=draft.confidence)
            rank = draft.rank(token)
            counts.rank(rank)
            if draft.probabilities and probabilities:
                counts.compare(probabilities[place], 0.0 if rank is None else draft.probabilities[rank])

    def frame_left(self, step: Step, *, alone: bool) -> int | None:
        """A frame of the choice in use has verified `step`; returns the nanoseconds since the one before."""
        since_ns = self.since_last_sample()
        counts = self.schedule.counts
        self.cycles, self._counted = counts.cycles - self._counted, counts.cycles
        if since_ns is None or self.session is None or self._is_calibration:
            return since_ns
        if self.schedule.shape == self._shapes.of(self.session.choice):  # in a crowd it is not
            verdicts = [place < len(step.right) for place in range(len(step.tokens))]
            guesses = zip(step.guesses, step.tokens, strict=True)
            ranks = [None if guess is None else guess.draft.rank(token) for guess, token in guesses]
            seconds = since_ns * 1e-9 if alone else None
            refilled = self.cycles >= self.schedule.stages
            self._shapes.sampled(self.session.choice, seconds, verdicts, ranks, refilled=refilled)
        return since_ns

    def set_shape(self, *, crowded: bool = False) -> bool:
        """Frames to come hold what is best with the choice in use; see `ShapeOfFrames.of`.

        Returns whether that is another shape than before.
        """
        if self.session is None or self._is_calibration:
            return False
        shape = self._shapes.of(self.session.choice, crowded=crowded)
        if shape == self.schedule.shape:
            return False
        self.schedule.shape = shape
        self.drafter.frames(shape.width)
        return True

    @property
    def _is_calibration(self) -> bool:
        return self.request is not None and self.request.client is None

    def follow(self, step: Step) -> None:
        """Tells the drafter what has been verified, unless it was the end."""
        schedule = self.schedule
        if step.finish is not None:
            return
        for place, count in enumerate(range(schedule.verified - len(step.tokens) + 1, schedule.verified + 1)):
            if place < len(step.right):
                self.drafter.chosen(*step.right[place])
            if step.rejected and count == schedule.verified:
                self.drafter.rejected(count - 1, schedule.epoch)
            self.drafter.verified(schedule.tokens, count)

    def claim(self, *, contested: bool) -> Claim:
        """What it has in the pipeline and would send next; what that is worth matters to others alone (`contested`)."""
        schedule = self.schedule
        offer = schedule.offer()
        wanted = schedule.wants_draft()
        return Claim(
            offer=offer,
            worth=self._worth(schedule.announced) if contested and offer == "draft" else 1.0,
            in_flight=len(schedule.in_flight),
            prompts=schedule.count("prompt"),
            decoding=schedule.fresh > 0,
            draft_worth=None if not wanted else self._worth(schedule.end) if contested else 1.0,
            opens_frame=schedule.announced == schedule.end,
        )

    def _worth(self, position: int) -> float:
        """The probability that the likeliest draft at `position`, which may not be made yet, and those before it are
        right."""
        schedule = self.schedule
        if position < schedule.end:
            return self._acceptance.worth(node.confidence for node in schedule.likeliest(position))
        before = schedule.likeliest(position - 1) if position > schedule.verified else []
        return self._acceptance.worth([*(node.confidence for node in before), None])

    def cut(self) -> Frame:
        """The frame that is on offer, which is announced now."""
        frame = self.schedule.cut()
        if self.schedule.policy.breadth > 1:
            self.drafter.sent(frame.index, self.schedule.sent)
        return frame

    def refill(self) -> None:
        """Drafts that wait, and of which some have turned out wrong, get others for company: candidates of then."""
        schedule = self.schedule
        if room := schedule.room:
            found = [(node, node.guess.draft) for node in schedule.parents if node.guess is not None]
            schedule.widen(self._acceptance.best(found, room))

    def draft(self) -> bool:
        """Asks for the drafts that are wanted; returns whether there are any.

        A frame that waits for more drafts goes without those that are not to be had, but waits for those to come.
        """
        schedule = self.schedule
        leaves, found = schedule.leaves, list[tuple[Node, Draft]]()
        self.drafter.level(schedule.tokens, schedule.verified, leaves)
        for leaf in leaves:
            answer = self.drafter.draft(schedule.text(leaf))
            if answer is PENDING:
                return False
            if answer is not None:
                leaf.guess = Guess(answer, leaf.position - schedule.verified + 2)
                found.append((leaf, answer))
        if not found:
            schedule.flush()
            return False
        schedule.grow(self._acceptance.best(found, schedule.most))
        return True


def idle_streams(
    config: EngineConfig,
    policy: FramePolicy,
    numbers: Iterator[int],
    drafters: Sequence[Drafter],
    controller: Controller,
) -> list[Stream]:
    """A stream for each slot and its drafter; `numbers` are those of the frames that are announced."""
    back, lends = beginnings_of(config)
    shapes = ShapeOfFrames(config.stages, policy.shapes, controller.costs)
    return [
        Stream(Schedule(slot, config.stages, policy, config.prefill_chunk, numbers, back, lends), drafter, shapes)
        for slot, drafter in enumerate(drafters)
    ]
