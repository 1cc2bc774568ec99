"""An event simulation of a pipeline: the real schedule and the real look-ahead, with everything else made up.

Stages are servers with random service times; control messages, hidden states and samples travel on ordered channels
with random delays of their own. The model is a hash of the whole prefix that the stage really holds, so any wrong key
or value changes the output. Time has no unit; a stage forward takes about 1.
"""

import hashlib
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from speculation.decisions.drafts.steps import Step
from speculation.decisions.drafts.tree import Node, Shoot
from speculation.decisions.policy import FramePolicy, pipelined
from speculation.decisions.schedule import Schedule
from speculation.simulate.stages import Events, Stages
from workers.decisions.state_entries import StateEntries
from workers.decisions.windows import HeldWindow
from workers.shared.frames import REAL, Frame, Move, TokenPlace
from workers.shared.messages import Open, Sample, Sampling
from workers.shared.model_files.layers import ring_entries
from workers.shared.model_files.windows import WindowRule

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


class Memory:
    """What a stage whose layers have states remembers: the text that each entry is the state behind."""

    def __init__(self, policy: FramePolicy, snapshots: int, chunk: int) -> None:
        self._entries = StateEntries(ring_entries(policy.credits * policy.width), snapshots, chunk)
        self._texts: list[list[int]] = [[] for _ in range(self._entries.count)]
        self._wide = policy.width

    def compute(self, frame: Frame) -> list[int]:
        """The text behind the frame; one that may be rejected within is computed token by token."""
        step = 1 if len(frame.tokens) <= self._wide else len(frame.tokens)
        text: list[int] = []
        for start in range(0, len(frame.tokens), step):
            position = frame.position + start
            source = self._entries.source(position)
            text = [*([] if source is None else self._texts[source]), *frame.tokens[start : start + step]]
            chunk = start + step == len(frame.tokens) and self._entries.is_chunk(frame.position, len(frame.tokens))
            for entry in self._entries.wrote(position, step, chunk=chunk):
                self._texts[entry] = text
        return text


class Rows:
    """Keys and values of one stage: real rows by position and slots of scratch, as frames say.

    A row is a token and a digest of all that it has seen; whoever sees a row that has not seen the same is wrong, too.
    """

    def __init__(self) -> None:
        self._real: list[tuple[int, int]] = []
        self._scratch: dict[int, tuple[int, int]] = {}
        self._sound = 0  # real rows, the first ones, of which each has seen those before it

    @property
    def real_tokens(self) -> list[int]:
        """What is held by position."""
        return [token for token, _ in self._real]

    def move(self, moves: Sequence[Move]) -> None:
        for slot, position in moves:
            self._write(TokenPlace(position), self._scratch.get(slot, (-1, 0)))

    def compute(self, frame: Frame) -> None:
        for row, token in enumerate(frame.tokens):
            digest = self._digest(frame, row)
            self._write(frame.place(row), (token, 0 if digest is None else hash((digest, token))))

    def text(self, frame: Frame, row: int) -> list[int]:
        """What the row sees, and itself."""
        before = [*self._real[: frame.seen], *self._between(frame, row)]
        return [*(token for token, _ in before), frame.tokens[row]]

    def sound(self, frame: Frame, row: int) -> bool:
        """Whether the row and all that it sees have seen what they should."""
        place = frame.place(row)
        held = self._real[place.position] if place.slot == REAL else self._scratch[place.slot]
        return held == (frame.tokens[row], hash((self._digest(frame, row), frame.tokens[row])))

    def _between(self, frame: Frame, row: int) -> list[tuple[int, int]]:
        """The rows behind what all rows of the frame see, and before this one."""
        if frame.branches is None:
            return self._real[frame.seen : frame.place(row).position]
        base, paths = frame.branches
        before = enumerate(paths[row][:-1], base)
        return [self._real[at] if slot == REAL else self._scratch[slot] for at, slot in before]

    def _digest(self, frame: Frame, row: int) -> int | None:
        """Of the rows that the row sees; None where one of them has seen anything else."""
        if frame.seen > self._sound:
            return None
        digest = self._real[frame.seen - 1][1] if frame.seen else 0
        for token, held in self._between(frame, row):
            digest = hash((digest, token))
            if digest != held:
                return None
        return digest

    def _write(self, place: TokenPlace, row: tuple[int, int]) -> None:
        if place.slot != REAL:
            self._scratch[place.slot] = row
            return
        self._real += [(-1, 0)] * (place.position + 1 - len(self._real))
        self._real[place.position] = row
        self._sound = min(self._sound, place.position)
        while self._sound < len(self._real):
            token, digest = self._real[self._sound]
            if digest != hash((self._real[self._sound - 1][1] if self._sound else 0, token)):
                return
            self._sound += 1


def sampled_along(rows: Rows, frame: Frame, first: int | None, prompt_tokens: int) -> Sample:
    """What the tail says: a token after each row that holds what was sampled before it, the prompt's excepted."""
    if frame.position < prompt_tokens:
        first = len(frame.tokens) - 1
    if first is None or not frame.wants_sample:
        return Sample(frame.sequence, frame.epoch, frame.end)
    row: int | None = first
    tokens: list[int] = []
    while row is not None:
        assert rows.sound(frame, row), f"what is sampled after in {frame} has seen another text"
        tokens.append(target(rows.text(frame, row)))
        row = frame.follower(frame.place(row), tokens[-1])
    return Sample(frame.sequence, frame.epoch, frame.place(first).position + 1, tuple(tokens))


class WindowMemory:
    """What a layer with a window holds of a slot: what is given back is lost, and nothing that is lost may be read."""

    def __init__(self, rule: WindowRule) -> None:
        self.rule = rule
        self.held = HeldWindow(rule)
        self.rows: dict[int, int] = {}  # position -> token

    def compute(self, frame: Frame, text: Sequence[int]) -> None:
        """The frame reads and writes; `text` is what the sequence has come to, and what it has to find."""
        for position in range(*(self.held.begin(frame.position, len(frame.tokens)) or (0, 0))):
            self.rows.pop(position, None)
        first = max(0, frame.position - self.rule.window + 1)
        assert [self.rows.get(at) for at in range(first, frame.seen)] == list(text[first : frame.seen])
        for row, token in enumerate(frame.tokens):
            place = frame.place(row)
            if place.slot == REAL:
                self.rows[place.position] = token
        assert sum(position < frame.end for position in self.rows) <= self.rule.most

    def copy(self, source: "WindowMemory", positions: int) -> None:
        """The first `positions` of another slot."""
        source.held.lends(positions)
        self.rows = {at: source.rows[at] for at in range(self.held.copied(positions), positions)}


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
        snapshots: int | None = None,
        window: int | None = None,
    ) -> None:
        """With `snapshots` the model is one that remembers in states, of which stages keep so many behind chunks.

        With a `window` it has layers that see so many positions, and keep no more.

        `silence` is the probability that the drafter has no guess; frames are pipelined unless `policy` is given."""
        self._rng = rng
        self._jitter = jitter
        self._control_delay = control
        self._draft_time = draft_time
        self._reuse = reuse
        self._silence = silence
        self._acceptance = acceptance
        self._events = Events()
        self._last: dict[tuple[str, int], float] = {}
        policy = policy or pipelined(stages)
        rule = WindowRule(window or 1, chunk, policy.credits * policy.width, policy.chunks + 1)
        limits = [limit for limit in (snapshots, None if window is None else rule.back) if limit is not None]
        back = min(limits, default=None)
        self.schedule = Schedule(0, stages, policy, chunk, itertools.count(), back)
        self._windows = [] if window is None else [WindowMemory(rule) for _ in range(stages)]
        self._memories = [] if snapshots is None else [Memory(policy, snapshots, chunk) for _ in range(stages)]
        self.stages = Stages(stages, self._events, self)
        self._rows = [Rows() for _ in range(stages)]
        self._prompt_tokens = 0  # a frame that is left from the request before is dead, whatever is said of it
        self._drafting: tuple[int, int] | None = None
        self.widest = 0  # rows of a frame behind the prompt
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
            self._prompt_tokens = len(request.prompt)
            reused = self.schedule.reusable(request.prompt) if self._reuse else 0
            self.stages.announce([Open(0, self.schedule.epoch, len(request.prompt), Sampling(seed=0), reused)])
            self.schedule.start(request.prompt, request.max_tokens, request.stop_tokens, reused, given)
            self._apply(Step())
            self._current = number
            if request.abort_after is not None:
                self._events.after(request.abort_after, partial(self._abort, number))
            while self.schedule.running:
                self._events.next()
        while self._events:  # dead frames still cross every edge
            self._events.next()
        assert all(stage.idle for stage in self.stages.all)
        return outcomes

    def _noisy(self, mean: float) -> float:
        return mean * (1 + self._jitter * (self._rng.random() * 2 - 1))

    # --- rank 0 ---

    def _apply(self, step: Step) -> None:
        self.stages.announce([*step.control, *self.schedule.announce()])
        if step.tokens:
            if not self._outcome.tokens:
                self._outcome.first_at = self._events.now
            self._outcome.tokens += step.tokens
            self._outcome.last_at = self._events.now
        if step.finish is not None:
            self._outcome.finish = step.finish
        self._check()
        self._draft()

    def _check(self) -> None:
        schedule, policy = self.schedule, self.schedule.policy
        decoding = [frame for frame in schedule.in_flight if frame.position >= self._given]
        assert len(schedule.in_flight) <= policy.chunks or decoding
        assert len(decoding) <= policy.credits
        assert all(len(frame.tokens) <= policy.width * policy.breadth for frame in decoding)
        assert all(frame.end - frame.position <= policy.width for frame in decoding)
        waiting = schedule.end - schedule.announced
        assert schedule.announced < self._given or waiting <= policy.width
        assert all(frame.epoch == schedule.epoch for frame in schedule.in_flight)
        if policy.breadth == 1:
            position = schedule.announced
            for frame in reversed(schedule.in_flight):
                assert frame.end == position
                position = frame.position
        self._check_places()

    def _check_places(self) -> None:
        """No two drafts that may still be right, or were and have not been moved, are in one place."""
        schedule = self.schedule
        tree = schedule._tree
        nodes = [node for level in tree.levels for node in level]
        slots = [node.slot for node in nodes if node.slot != REAL] + [slot for slot, _ in tree.moves]
        real = [node.position for node in nodes if node.slot == REAL]
        assert len(set(slots)) == len(slots)
        assert len(set(real)) == len(real)
        assert sorted([*slots, *tree._free]) == list(range(schedule.policy.scratch))
        assert all(len(level) <= schedule.policy.breadth for level in tree.levels)

    def _draft(self) -> None:
        if self._drafting is None and self.schedule.wants_draft():
            self._drafting = (self.schedule.epoch, self.schedule.end)
            self._events.after(self._noisy(self._draft_time), self._drafted)

    def _drafted(self) -> None:
        wanted, self._drafting = self._drafting, None
        if wanted == (self.schedule.epoch, self.schedule.end) and self.schedule.wants_draft():
            if self._rng.random() < self._silence:
                self.schedule.flush()
                self.stages.announce(self.schedule.announce())
                self._check()
                return
            shoots = [shoot for leaf in self.schedule.leaves for shoot in self._shoots(leaf)]
            if self.schedule.policy.breadth > 1:
                self._rng.shuffle(shoots)
            self.schedule.grow(shoots[: self._rng.randint(1, self.schedule.most)])
            self._reshape()
            self._apply(Step())
        else:
            self._draft()

    def _reshape(self) -> None:
        """Frames to come are of another shape, now and then."""
        if len(self.schedule.policy.shapes) > 1 and self._rng.random() < 0.3:
            self.schedule.shape = self._rng.choice(self.schedule.policy.shapes)

    def _shoots(self, leaf: Node) -> list[Shoot]:
        """Drafts behind a leaf, as many as may be; one of them is right as often as was asked for."""
        right = target(self.schedule.text(leaf))
        accept, position = self._acceptance, leaf.position + 1
        good = accept(position) if callable(accept) else self._rng.random() < accept
        first = right if good else (right + 1) % VOCABULARY
        others = [(right + 2 + rank) % VOCABULARY for rank in range(self.schedule.policy.breadth - 1)]
        return [Shoot(leaf, token) for token in (first, *others)]

    def _abort(self, number: int) -> None:
        if self._current == number:
            self._apply(self.schedule.abort())

    # --- what surrounds the stages ---

    def send(self, channel: str, stage: int, arrive: Callable[[], None]) -> None:
        """An ordered channel with random delays."""
        delay = self._noisy(self._control_delay) * (1 + 20 * self._jitter * self._rng.random())
        arrival = max(self._last.get((channel, stage), 0.0), self._events.now + delay)
        self._last[channel, stage] = arrival
        self._events.at(arrival, arrive)  # not now + (arrival - now): rounding could overtake

    def service(self, stage: int, frame: Frame, alive: bool) -> float:
        return self._noisy(1.0) if alive else 0.001

    def move(self, stage: int, moves: Sequence[Move]) -> None:
        rows = self._rows[stage]
        rows.move(moves)
        for window in self._windows[stage : stage + 1]:
            window.rows |= {position: rows.real_tokens[position] for _, position in moves}

    def compute(self, stage: int, frame: Frame, first: int | None) -> Sample | None:
        """Any wrong key or value changes the last stage's answer."""
        rows = self._rows[stage]
        if self._windows:
            self._windows[stage].compute(frame, rows.real_tokens)
        rows.compute(frame)
        if frame.position >= self._prompt_tokens:
            self.widest = max(self.widest, len(frame.tokens))
        if self._memories:
            text = self._memories[stage].compute(frame)
            assert text == rows.text(frame, len(frame.tokens) - 1)
        return sampled_along(rows, frame, first, self._prompt_tokens) if stage + 1 == len(self._rows) else None

    def sampled(self, sample: Sample) -> None:
        step = self.schedule.sample(sample)
        if self._rng.random() < 0.5 and (room := self.schedule.room):
            shoots = [shoot for node in self.schedule.parents for shoot in self._shoots(node)]
            new = [shoot for shoot in shoots if shoot.parent.child(shoot.token) is None]
            self._rng.shuffle(new)
            self.schedule.widen(new[:room])
        self._reshape()
        self._apply(step)
