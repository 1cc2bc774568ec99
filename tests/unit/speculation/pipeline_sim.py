"""An event simulation of a pipeline: the real schedule and the real look-ahead, with everything else made up.

Stages are servers with random service times; control messages, hidden states and samples travel on ordered channels
with random delays of their own. The model is a hash of the whole prefix that the stage really holds, so any wrong key
or value changes the output. Time has no unit; a stage forward takes about 1.
"""

import hashlib
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from speculation.decisions.policy import FramePolicy, pipelined
from speculation.decisions.schedule import Schedule, Step
from workers.decisions.lookahead import Lookahead
from workers.shared.frames import Frame
from workers.shared.messages import Open, Rollback, Sample, Sampling

VOCABULARY = 50


def target(prefix: Sequence[int]) -> int:
    """The model: the next token depends on every token before it."""
    return int.from_bytes(hashlib.blake2b(bytes(prefix), digest_size=2).digest(), "big") % VOCABULARY


def plain(prompt: Sequence[int], max_tokens: int, stop_tokens: Sequence[int] = ()) -> list[int]:
    """The oracle: plain autoregressive decoding."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(target(tokens))
        if tokens[-1] in stop_tokens:
            break
    return tokens[len(prompt) :]


@dataclass
class Request:
    """What to generate, and after how much simulated time the client goes away."""

    prompt: list[int]
    max_tokens: int
    stop_tokens: tuple[int, ...] = ()
    abort_after: float | None = None
    generated: int = 0  # tokens, or one less than there are, that an earlier engine has given

    @property
    def given(self) -> list[int]:
        """These tokens."""
        return plain(self.prompt, self.max_tokens, self.stop_tokens)[:-1][: self.generated]


@dataclass
class Outcome:
    """What came of a request."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    first_at: float = 0.0
    last_at: float = 0.0


@dataclass
class _Stage:
    lookahead: Lookahead
    kv: list[int] = field(default_factory=list)
    inputs: deque[int] = field(default_factory=deque)
    frame: Frame | None = None  # popped, its input not here yet
    busy: bool = False
    prompt_tokens: int = 0


class PipelineSim:
    """Runs requests one after the other through `stages` simulated stages."""

    def __init__(
        self,
        stages: int,
        policy: FramePolicy | None = None,
        chunk: int = 4,
        *,
        acceptance: float | Callable[[int], bool] = 1.0,
        rng: random.Random,
        jitter: float = 0.0,
        control: float = 0.01,
        draft_time: float = 0.0,
        reuse: bool = False,
        silence: float = 0.0,
    ) -> None:
        """`silence` is the probability that the drafter has no guess; frames are pipelined unless `policy` is given."""
        self.now = 0.0
        self.computed = 0
        self.skipped = 0
        self._rng = rng
        self._jitter = jitter
        self._control_delay = control
        self._draft_time = draft_time
        self._reuse = reuse
        self._silence = silence
        self._acceptance = acceptance
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._last: dict[object, float] = {}
        self.schedule = Schedule(0, stages, policy or pipelined(stages), chunk, itertools.count())
        self._stages = [_Stage(Lookahead(f"stage {i}")) for i in range(stages)]
        self._drafting: tuple[int, int] | None = None
        self._outcome = Outcome()
        self._current = 0
        self._given = 0  # tokens

    def run(self, requests: Sequence[Request]) -> list[Outcome]:
        """The outcome of every request."""
        outcomes = []
        for number, request in enumerate(requests):
            given = request.given
            self._outcome = Outcome(list(given))
            self._given = len(request.prompt) + len(given)
            outcomes.append(self._outcome)
            reused = self.schedule.reusable(request.prompt) if self._reuse else 0
            self._send_control([Open(0, self.schedule.epoch, len(request.prompt), Sampling(seed=0), reused)])
            self.schedule.start(request.prompt, request.max_tokens, request.stop_tokens, reused, given)
            self._apply(Step())
            self._current = number
            if request.abort_after is not None:
                self._after(request.abort_after, self._abort, number)
            while self.schedule.running:
                self._next_event()
        while self._events:  # dead frames still cross every edge
            self._next_event()
        assert all(not stage.busy and stage.frame is None and not stage.inputs for stage in self._stages)
        return outcomes

    # --- events ---

    def _next_event(self) -> None:
        self.now, _, action, args = heapq.heappop(self._events)
        action(*args)

    def _after(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        self._at(self.now + delay, action, *args)

    def _at(self, time: float, action: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._events, (time, next(self._order), action, args))

    def _noisy(self, mean: float) -> float:
        return mean * (1 + self._jitter * (self._rng.random() * 2 - 1))

    def _channel(self, key: object, action: Callable[..., None], *args: Any) -> None:
        """An ordered channel with random delays."""
        delay = self._noisy(self._control_delay) * (1 + 20 * self._jitter * self._rng.random())
        arrival = max(self._last.get(key, 0.0), self.now + delay)
        self._last[key] = arrival
        self._at(arrival, action, *args)  # not now + (arrival - now): rounding could overtake

    # --- rank 0 ---

    def _send_control(self, messages: Sequence[Frame | Open | Rollback]) -> None:
        for message in messages:
            for index, _ in enumerate(self._stages):
                self._channel(("control", index), self._hear, index, message)

    def _apply(self, step: Step) -> None:
        self._send_control([*step.control, *self.schedule.announce()])
        if step.tokens:
            if not self._outcome.tokens:
                self._outcome.first_at = self.now
            self._outcome.tokens += step.tokens
            self._outcome.last_at = self.now
        if step.finish is not None:
            self._outcome.finish = step.finish
        self._check()
        self._draft()

    def _check(self) -> None:
        schedule, policy = self.schedule, self.schedule.policy
        decoding = [frame for frame in schedule.in_flight if frame.position >= self._given]
        assert len(schedule.in_flight) <= policy.chunks or decoding
        assert len(decoding) <= policy.credits
        assert all(len(frame.tokens) <= policy.width for frame in decoding)
        waiting = len(schedule.tokens) - schedule.announced
        assert schedule.announced < self._given or waiting <= policy.width
        position = schedule.announced
        for frame in reversed(schedule.in_flight):
            assert frame.epoch == schedule.epoch
            assert frame.end == position
            assert list(frame.tokens) == schedule.tokens[frame.position : frame.end]
            position = frame.position

    def _draft(self) -> None:
        if self._drafting is None and self.schedule.wants_draft():
            self._drafting = (self.schedule.epoch, len(self.schedule.tokens))
            self._after(self._noisy(self._draft_time), self._drafted)

    def _drafted(self) -> None:
        wanted, self._drafting = self._drafting, None
        if wanted == (self.schedule.epoch, len(self.schedule.tokens)) and self.schedule.wants_draft():
            if self._rng.random() < self._silence:
                self.schedule.flush()
                self._send_control(self.schedule.announce())
                self._check()
                return
            right = target(self.schedule.tokens)
            accept = self._acceptance
            good = accept(wanted[1]) if callable(accept) else self._rng.random() < accept
            self.schedule.draft(right if good else (right + 1) % VOCABULARY)
            self._apply(Step())
        else:
            self._draft()

    def _abort(self, number: int) -> None:
        if self._current == number:
            self._apply(self.schedule.abort())

    # --- stages ---

    def _hear(self, index: int, message: Frame | Open | Rollback) -> None:
        stage = self._stages[index]
        stage.lookahead.hear(message)
        if isinstance(message, Open):
            stage.prompt_tokens = message.prompt_tokens
        self._start(index)

    def _arrive(self, index: int, number: int) -> None:
        self._stages[index].inputs.append(number)
        self._start(index)

    def _start(self, index: int) -> None:
        stage = self._stages[index]
        if stage.busy:
            return
        if stage.frame is None:
            stage.frame = stage.lookahead.pop()
        if stage.frame is None or (index > 0 and not stage.inputs):
            return
        frame, stage.frame, stage.busy = stage.frame, None, True
        if index > 0:
            assert stage.inputs.popleft() == frame.index, "an edge is out of order"
        alive = stage.lookahead.admit(frame)
        self.computed += alive
        self.skipped += not alive
        sample: Sample | None = None
        if alive:
            stage.kv[frame.position :] = frame.tokens
            if index + 1 == len(self._stages):
                sample = _sample(stage, frame)
        self._after(self._noisy(1.0) if alive else 0.001, self._finish, index, frame, sample)

    def _finish(self, index: int, frame: Frame, sample: Sample | None) -> None:
        stage = self._stages[index]
        stage.busy = False
        if index + 1 < len(self._stages):
            self._channel(("data", index), self._arrive, index + 1, frame.index)
        elif sample is not None:
            if sample.tokens:
                stage.lookahead.sampled(frame, sample)
            self._channel("results", self._on_sample, sample)
        self._start(index)

    def _on_sample(self, sample: Sample) -> None:
        self._apply(self.schedule.sample(sample))


def _sample(stage: _Stage, frame: Frame) -> Sample:
    """What the tail says: a token after each of the frame's, the prompt's excepted, up to the first wrong draft."""
    if not frame.wants_sample:
        return Sample(0, frame.epoch, frame.end)
    first = max(frame.position + 1, stage.prompt_tokens)
    tokens = [target(stage.kv[:first])]
    while first + len(tokens) <= frame.end and tokens[-1] == stage.kv[first + len(tokens) - 1]:
        tokens.append(target(stage.kv[: first + len(tokens)]))
    return Sample(0, frame.epoch, first, tuple(tokens))
