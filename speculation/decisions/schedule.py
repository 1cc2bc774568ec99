"""The pipeline schedule: which frame enters next, and what a sample means. No torch, no sockets, no clock.

One list holds everything about a sequence: `tokens[:verified]` is final, `tokens[verified:]` are drafts. Frames are cut
from it in order, as the policy says; `announced` says how far. A draft that waits for a credit, or for more drafts to
share its frame, is a token not yet announced. See docs/design.md, "Frames and epochs".
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from speculation.decisions.policy import FramePolicy
from workers.decisions.state_entries import Returns
from workers.shared.errors import OutOfStep
from workers.shared.frames import Frame
from workers.shared.messages import Rollback, Sample, SpeculationCounts

Finish = Literal["stop", "length", "abort"]
FrameKind = Literal["certain", "draft", "prompt"]
FRAME_KINDS: tuple[FrameKind, ...] = get_args(FrameKind)


class Offer(NamedTuple):
    """What the next frame would be."""

    kind: FrameKind
    depth: int = 0  # drafts that have to be right for it to be of use, itself included


@dataclass(frozen=True)
class Step:
    """What follows from one event. `control` goes to every stage before anything else happens."""

    control: Sequence[Rollback] = ()
    tokens: Sequence[int] = ()  # newly verified
    finish: Finish | None = None  # after the last token
    rejected: bool = False  # the last token stands where a draft was wrong


@dataclass
class Schedule:
    """One sequence slot.

    Invariants, between calls: frames in `in_flight` are alive, consecutive, and end at `announced`; the first sample of
    the oldest one that wants any belongs at `verified`; at most one frame's worth of tokens is not announced; and no
    more frames are in flight than the policy allows.
    """

    sequence: int
    stages: int
    policy: FramePolicy
    prefill_chunk: int
    numbers: Iterator[int]  # announcement numbers, shared by all slots of an engine
    back: int | None = None  # how many of the newest chunk ends a request can begin behind; None: any of them
    lends: bool = True  # whether other slots may copy what is held here
    epoch: int = 0
    tokens: list[int] = field(default_factory=list)
    verified: int = 0
    announced: int = 0
    in_flight: deque[Frame] = field(default_factory=deque)
    counts: SpeculationCounts = field(default_factory=SpeculationCounts)
    running: bool = False
    width: int = field(init=False)  # tokens of the frames to come, at most the policy's
    reused: int = 0  # positions of the prompt that an earlier request had computed already
    _canonical: int = 0
    _prompt: int = 0
    _given: int = 0  # the prompt, and what was generated before this slot was taken over
    _limit: int = 0
    _stop_tokens: Collection[int] = ()
    _refilling: bool = True  # the next token to verify had no draft ahead of it
    _flushed: bool = False  # the next frame waits for no more drafts

    def __post_init__(self) -> None:
        self.width = self.policy.width
        self._returns = Returns(self.prefill_chunk, self.back)

    @property
    def outputs(self) -> int:
        """Verified tokens behind the prompt."""
        return self.verified - self._prompt

    @property
    def fresh(self) -> int:
        """Tokens that this slot has verified itself: `outputs`, less what was generated before."""
        return self.verified - self._given

    @property
    def reserved(self) -> int:
        """Positions that the request may come to need; of an idle slot, those that are kept."""
        return self._limit if self.running else self._canonical

    @property
    def kept(self) -> int:
        """Positions, from 0, whose keys and values are bit by bit those of a fresh prefill: whole prompt chunks.

        What was decoded token by token, or in a shorter last chunk, went through kernels of other shapes. Reusing it
        could tip a near-tie, and a prompt's answer would depend on what was asked before.
        """
        return self._canonical

    @property
    def oldest(self) -> int:
        """Announcement number of the oldest frame in flight; -1 if there is none."""
        return self.in_flight[0].index if self.in_flight else -1

    def reusable(self, prompt: Sequence[int], limit: int | None = None) -> int:
        """How many leading positions of `prompt`, at most `limit`, need not be computed again in this slot."""
        most = self._canonical if limit is None else min(self._canonical, limit)
        return self._returns.at_most(self._common(prompt, most))

    def coming(self, prompt: Sequence[int]) -> int:
        """The same once as much of the prompt that is being computed here is done; 0 where none is."""
        if not self.lends or not self.running or self.fresh > 0:
            return 0
        common = self._common(prompt, self._prompt)
        return common if common > self._canonical else self._returns.at_most(common)

    def _common(self, prompt: Sequence[int], most: int) -> int:
        """Whole chunks, in positions, in which `prompt` and the first `most` tokens agree; never the whole prompt."""
        size, end = self.prefill_chunk, 0
        most = min(most, len(prompt) - 1)
        while end + size <= most and self.tokens[end : end + size] == list(prompt[end : end + size]):
            end += size
        return end

    def start(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        stop_tokens: Collection[int] = (),
        reused: int = 0,
        generated: Sequence[int] = (),
        *,
        copied: bool = False,
    ) -> None:
        """Takes the slot over for a request; its frames begin after the `reused` positions of the prompt.

        `reused` is what `reusable` says, here or of the slot that it is `copied` from, or 0. `generated` is output that
        is verified already, for an earlier engine has given it; its frames are those it had, of one token each, but all
        stages work on them at once. `max_tokens` counts it.
        """
        if self.running or not prompt or max_tokens < 1:
            raise ValueError("start() needs an idle slot, a prompt of at least one token and max_tokens >= 1")
        self.running = True
        self.tokens = [*prompt, *generated]
        self._prompt = len(prompt)
        self.verified = self._given = len(self.tokens)
        self.announced = self.reused = self._canonical = reused
        self._returns.began(reused, copied=copied)
        self.counts = SpeculationCounts()
        self._limit = len(prompt) + max_tokens
        self._stop_tokens = stop_tokens
        self._refilling = True
        self._flushed = False

    def wants_draft(self) -> bool:
        """Whether a draft of the token after `tokens` is of use now.

        Drafting runs one frame ahead of the credits, if there are several. It begins with the first verified token, and
        does not go past an end token or past the last token whose frame could still yield one.
        """
        return (
            self.running
            and self.verified > self._given
            and len(self.tokens) - self.announced < self.width
            and (self.policy.credits > 1 or not self.in_flight)
            and len(self.tokens) < self._limit - 1
            and self.tokens[-1] not in self._stop_tokens
        )

    def draft(self, token: int) -> None:
        """Appends a draft; only valid while `wants_draft()`."""
        if not self.wants_draft():
            raise ValueError("no draft is wanted")
        self.tokens.append(token)
        self.counts.drafted += 1

    def flush(self) -> None:
        """No draft is to be had for now: a frame that waits for more of them goes as it is."""
        self._flushed = True

    def offer(self) -> Offer | None:
        """The frame that may go now, as far as this sequence is concerned; None while there is nothing to send."""
        if self._cut() is None:
            return None
        kind = self.kind(self.announced)
        return Offer(kind, self.announced - self.verified + 1 if kind == "draft" else 0)

    def cut(self) -> Frame:
        """Takes the frame that is on offer: it is in flight, and has to be announced to every stage."""
        start, end = self.announced, self._cut()
        if end is None:
            raise ValueError("there is nothing to send")
        frame = Frame(
            index=next(self.numbers),
            sequence=self.sequence,
            epoch=self.epoch,
            position=start,
            tokens=tuple(self.tokens[start:end]),
            wants_sample=end >= self._given,
        )
        self.announced = end
        self._returns.announced(start, end - start)
        self.in_flight.append(frame)
        self._flushed = False
        return frame

    def announce(self) -> list[Frame]:
        """Every frame that may go now, where nobody else wants credits."""
        frames = []
        while self.offer() is not None:
            frames.append(self.cut())
        return frames

    def count(self, kind: FrameKind) -> int:
        """Frames of a kind that are in flight."""
        if kind == "prompt" and (not self.in_flight or self.in_flight[0].position >= self._given):
            return 0  # at every token
        return sum(self.kind(frame.position) == kind for frame in self.in_flight)

    def kind(self, position: int) -> FrameKind:
        """What a frame that begins at `position` is by now."""
        if position < self._given:
            return "prompt"
        return "certain" if position < self.verified else "draft"

    def concerns(self, sample: Sample) -> bool:
        """Whether the frame of the sample is alive; other samples mean nothing."""
        return self.running and (sample.sequence, sample.epoch) == (self.sequence, self.epoch)

    def sample(self, sample: Sample) -> Step:
        """What the last stage says of the oldest frame in flight.

        After a sample with an error, which may lack tokens, only `abort` is of use, unless the request has ended.
        Raises `OutOfStep` if it is not of the oldest frame.
        """
        if not self.concerns(sample):
            return Step()
        frame = self.in_flight.popleft() if self.in_flight else None
        if frame is None or not self._fits(sample, frame):
            raise OutOfStep(
                f"rank 0 expected the sample of {frame}, the last stage sent one of sequence {sample.sequence}, "
                f"epoch {sample.epoch}, position {sample.position}"
            )
        if frame.position == self._canonical and len(frame.tokens) == self.prefill_chunk and frame.end <= self._prompt:
            self._canonical = frame.end
            self._returns.computed(frame.end)
        return self._verify(sample.tokens) if sample.tokens else Step()

    def abort(self) -> Step:
        """Ends the request wherever it is."""
        if not self.running:
            return Step()
        return Step([self._end()], finish="abort")

    def forget(self) -> Rollback:
        """Keeps nothing of an idle slot."""
        if self.running:
            raise ValueError("a running request needs what its slot holds")
        self._canonical = 0
        self._returns.began(0)
        return Rollback(self.sequence, self.epoch)

    def _fits(self, sample: Sample, frame: Frame) -> bool:
        if not frame.wants_sample:
            return sample.position == frame.end and not sample.tokens
        whole = bool(sample.tokens) or sample.error is not None
        return sample.position == self.verified and sample.end <= frame.end + 1 and whole

    def _verify(self, sampled: Sequence[int]) -> Step:
        """Takes over what was sampled after each token of a frame, up to the first that is not the draft there."""
        if self.verified > self._given:  # the first token is the prefill's, and costs no decode cycle
            self.counts.cycles += self.stages if self._refilling else 1
        start = self.verified
        for token in sampled:
            drafted = self.verified < len(self.tokens)
            accepted = drafted and self.tokens[self.verified] == token
            rejected = drafted and not accepted
            if accepted:
                self.counts.accepted += 1
            elif rejected:
                self.counts.rejected += 1
                self.counts.discarded += len(self.tokens) - self.verified - 1
                del self.tokens[self.verified :]
            if not accepted:
                self.tokens.append(token)
            self.verified += 1
            finish = self._finish(token)
            if finish is not None or not accepted:
                break
        tokens = self.tokens[start : self.verified]
        if finish is not None:
            return Step([self._end()], tokens, finish)
        if rejected:
            self._roll_back()
        self._refilling = not accepted
        return Step((), tokens, None, rejected)

    def _finish(self, token: int) -> Finish | None:
        """Whether the request ends with `token`, the newest that is verified."""
        if token in self._stop_tokens:
            return "stop"
        return "length" if self.verified == self._limit else None

    def _roll_back(self) -> None:
        """Everything in flight is dead. The corrected token's frame, of the new epoch, tells the stages."""
        self.epoch += 1
        self.in_flight.clear()
        self.announced = self.verified - 1

    def _end(self) -> Rollback:
        self.counts.discarded += len(self.tokens) - self.verified
        del self.tokens[self.verified :]
        self._roll_back()
        self.running = False
        return Rollback(self.sequence, self.epoch, self._canonical)

    def _cut(self) -> int | None:
        """Where the next frame ends: a prompt chunk, then what the policy says. None while there is nothing to send."""
        start, policy = self.announced, self.policy
        if not self.running:
            return None
        if start < self._given:
            if len(self.in_flight) >= policy.chunks:
                return None
            return min(start + self.prefill_chunk, self._prompt) if start < self._prompt else start + 1
        if start == len(self.tokens) or len(self.in_flight) >= policy.credits:
            return None
        if self.wants_draft() and not self._flushed:
            return None
        return min(start + self.width, len(self.tokens))
