"""The pipeline schedule: which frame enters next, and what a sample means. No torch, no sockets, no clock.

`tokens[:verified]` are final; behind the last of them stands a tree of drafts, which is a chain where each position has
one. Frames are cut from both in order of positions, as the policy says; `announced` says how far. A draft that waits
for a credit, or for more drafts to share its frame, is one not yet announced. See docs/design.md, "Frames and epochs"
and "Branches".
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from speculation.decisions.drafts.steps import Finish, FrameKind, Step
from speculation.decisions.drafts.tree import Guess, Node, Shoot, Tree
from speculation.decisions.policy import FramePolicy
from workers.decisions.state_entries import Returns
from workers.shared.errors import OutOfStep
from workers.shared.frames import REAL, Frame, Shape, TreeFrame
from workers.shared.messages import Rollback, Sample, SpeculationCounts


@dataclass
class Schedule:
    """One sequence slot.

    Invariants, between calls: frames in `in_flight` are of the present epoch, and every draft that may still be right
    is in one of them or not announced; the first sample of the oldest one that has any belongs at `verified`; all
    drafts behind a token are in one frame; at most the widest frame's worth of positions is not announced; and no more
    frames are in flight than the policy allows. `shape` may change at any moment.
    """

    sequence: int
    stages: int
    policy: FramePolicy
    prefill_chunk: int
    numbers: Iterator[int]  # announcement numbers, shared by all slots of an engine
    back: int | None = None  # how many of the newest chunk ends a request can begin behind; None: any of them
    lends: bool = True  # whether other slots may copy what is held here
    epoch: int = 0
    tokens: list[int] = field(default_factory=list)  # behind `verified`, the drafts that were last asked about
    verified: int = 0
    announced: int = 0  # position
    in_flight: deque[Frame] = field(default_factory=deque)
    counts: SpeculationCounts = field(default_factory=SpeculationCounts)
    running: bool = False
    sent: Sequence[Node] = ()  # the rows of the frame that was cut last, but of prompts
    shape: Shape = field(init=False)  # of the frames to come, one of the policy's
    reused: int = 0  # positions of the prompt that an earlier request had computed already
    _canonical: int = 0
    _prompt: int = 0
    _given: int = 0  # the prompt, and what was generated before this slot was taken over
    _limit: int = 0
    _stop_tokens: Collection[int] = ()
    _refilling: bool = True  # the next token to verify had no draft ahead of it
    _flushed: bool = False  # the next frame waits for no more drafts

    def __post_init__(self) -> None:
        self.shape = self.policy.shapes[0]
        self._returns = Returns(self.prefill_chunk, self.back)
        self._tree = Tree(self.policy.scratch)

    @property
    def end(self) -> int:
        """Position behind the last draft, or behind the last token where there is none."""
        levels = len(self._tree.levels)
        return self.verified + levels - 1 if levels else self.verified

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
        """Whether drafts of the token at position `end` are of use now: behind any of `leaves`.

        Drafting runs one frame ahead of the credits, if there are several. It begins with the first verified token, and
        does not go past an end token or past the last token whose frame could still yield one.
        """
        return (
            self.running
            and self.verified > self._given
            and self.end - self.announced < self.shape.width
            and (self.policy.credits > 1 or not self.in_flight)
            and self.end < self._limit - 1
            and bool(self.leaves)
        )

    @property
    def leaves(self) -> list[Node]:
        """What drafts may follow, the likeliest first: the last verified token, or the drafts at the last position."""
        return [node for node in self._tree.levels[-1] if node.token not in self._stop_tokens]

    def text(self, leaf: Node) -> list[int]:
        """All tokens up to `leaf`; it is `tokens`, and valid until this is called again."""
        self.tokens[self.verified :] = [node.token for node in leaf.path(self.verified)]
        return self.tokens

    def likeliest(self, position: int) -> list[Node]:
        """The likeliest draft at `position`, and the drafts that lead to it."""
        return self._tree.levels[position - self.verified + 1][0].path(self.verified)

    def grow(self, shoots: Sequence[Shoot]) -> None:
        """Takes drafts behind some of `leaves`, the likeliest first, no two alike; only while `wants_draft()`."""
        if not shoots or len(shoots) > self.most or not self.wants_draft():
            raise ValueError("no such drafts are wanted")
        self._tree.grow(shoots)
        self.counts.drafted += len(shoots)
        self.counts.levels += 1

    @property
    def most(self) -> int:
        """Drafts that `grow` may take: as many as the shape says, if frames of other shapes have left the scratch."""
        return min(self.shape.breadth, self._tree.room(()))

    @property
    def room(self) -> int:
        """Drafts that may join those at the last position, of which some have turned out wrong before they went."""
        if not (self.announced < self.end and self.verified < self.end):
            return 0
        level = self._tree.levels[-1]
        return max(0, min(self.shape.breadth - len(level), self._tree.room(level)))

    @property
    def parents(self) -> list[Node]:
        """What stands before the last position."""
        return [node for node in self._tree.levels[-2] if node.token not in self._stop_tokens]

    def widen(self, shoots: Sequence[Shoot]) -> None:
        """Takes drafts behind some of `parents` that are not there yet, as many as there is `room` for."""
        if len(shoots) > self.room:
            raise ValueError("there is no room for so many drafts")
        self._tree.widen(shoots)
        self.counts.drafted += len(shoots)

    def flush(self) -> None:
        """No draft is to be had for now: a frame that waits for more of them goes as it is."""
        self._flushed = True

    def offer(self) -> FrameKind | None:
        """What the frame is that may go now, as far as this sequence is concerned; None while there is none to send."""
        return None if self._cut() is None else self.kind(self.announced)

    def cut(self) -> Frame:
        """Takes the frame that is on offer: it is in flight, and has to be announced to every stage."""
        start, end = self.announced, self._cut()
        if end is None:
            raise ValueError("there is nothing to send")
        frame = self._frame(start, end)
        self.announced = end
        self._returns.announced(start, end - start)
        self.in_flight.append(frame)
        self._flushed = False
        return frame

    def _frame(self, start: int, end: int) -> Frame:
        """What stands at positions `start` to `end`, with the place of each draft and what leads to it."""
        index, tree = next(self.numbers), self._tree
        root = tree.root
        if root is None or end <= root.position:
            self.sent, tokens = [], tuple(self.tokens[start:end])
            return Frame(index, self.sequence, self.epoch, start, tokens, end >= self._given)
        nodes, moves = tree.take(start, end)
        self.sent = nodes
        tokens = tuple(node.token for node in nodes)
        self.counts.sent += sum(node is not root for node in nodes)
        base = min(start, self.verified)
        paths = tree.paths(nodes, base) if tree.branched else ()
        if all(slot == REAL for path in paths for slot in path):
            paths = ()  # a chain, with nothing but itself in the rows before
        if not moves and not paths:
            return Frame(index, self.sequence, self.epoch, start, tokens, True)
        return TreeFrame(index, self.sequence, self.epoch, start, tokens, True, moves, base, paths)

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
        return self._verify(sample.tokens) if frame.wants_sample else Step()

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
        if not sample.tokens and sample.error is None:
            return sample.position == frame.end and (not frame.wants_sample or self.policy.breadth > 1)
        return frame.wants_sample and sample.position == self.verified and sample.end <= frame.end + 1

    def _verify(self, sampled: Sequence[int]) -> Step:
        """Takes over what was sampled along a frame, up to the first token that is no draft there.

        Nothing was, where the drafts of the frame had turned out wrong before.
        """
        if self.verified > self._given:  # the first token is the prefill's, and costs no decode cycle
            self.counts.cycles += self.stages if self._refilling else 1
        tree, counts = self._tree, self.counts
        guesses: list[Guess | None] = []
        finish: Finish | None = None
        right: list[tuple[Node, int]] = []
        rejected = False
        start = self.verified
        del self.tokens[start:]
        for token in sampled:
            root = tree.root
            child = None if root is None else root.child(token)
            guesses.append(None if root is None else root.guess)
            self.tokens.append(token)
            self.verified += 1
            if child is not None:
                right.append((child, child.slot))
                counts.accepted += 1
                sent = child.position < self.announced
                counts.moved += sent and child.slot != REAL
                counts.discarded += tree.advance(child, sent=sent)
                self.announced = min(self.announced, self.end)
            else:
                wrong = root is not None and bool(root.children)
                rejected = wrong or bool(self.in_flight)
                counts.rejected += wrong
                counts.discarded += tree.plant(token, self.verified - 1) - wrong
            self._refilling = child is None
            finish = self._finish(token)
            if finish is not None or child is None:
                break
        tokens = self.tokens[start:]
        if finish is not None:
            return Step([self._end()], tokens, finish, False, guesses, right)
        if rejected:
            self._roll_back()
        return Step((), tokens, None, rejected, guesses, right)

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
        self.counts.discarded += self._tree.clear()
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
        if start == self.end or len(self.in_flight) >= policy.credits:
            return None
        if self.wants_draft() and not self._flushed:
            return None
        return min(start + self.shape.width, self.end)
