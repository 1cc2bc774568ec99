"""How many tokens a frame holds, and how many drafts for one position. No torch, no sockets, no clock.

Frames of several tokens pay where drafts are right and come fast, branches where the right token is often among the
first candidates, and both where a stage takes little longer for several rows. `costs` says how much, from what is
known before anything is tried: times of the calibration, and which candidates were right lately. What a shape really
takes is compared with that, so that a wrong belief is left within a few samples, and not tried again soon.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speculation.decisions.estimates import Average, Choice
from speculation.decisions.shapes.costs import FrameCosts, held, seconds_per_token
from workers.shared.frames import Shape

_TEXT_HORIZON = 96.0  # tokens after which what was right in a request is old
_MEMORY_WEIGHT = 24.0  # tokens that earlier requests are worth at most
_PRIOR_WEIGHT = 4.0  # tokens that what is usual of a drafter is worth
_PACE_HORIZON = 96.0  # cycles after which a time is old
_PACE_CYCLES = 3.0  # for which times are taken to be as expected
_DEPTH_HORIZON = 512.0  # tokens after which it is old how much worse drafts are that look further ahead
_EVEN_TOKENS = 8.0  # for which they are taken to be as good
_NEIGHBOUR = 0.5  # of what is seen of one shape, for wider ones
_BETTER = 0.02  # gain for which another shape is taken
_SLOW = 0.1  # more time than it should take, for which a shape is left for a while
_UNLIKELY = 1e-6  # the least probability of a miss
_OUTLIER = 2.0  # a sample may take so many times what was expected; the rest is somebody else's doing
_LOSS_SHARE = 0.01  # of all time may be lost to shapes that turn out worse than the least
_LOSS_REFILLS = 2.0  # of the pipeline, whose time may be lost beyond that
_GAIN_REFILLS = 8.0  # whose time may be lost again after it has been gained
_FIRST_LOOK = 64  # samples of the least shape before any other, of a drafter that is compared with it alone
_FIRST_WAIT = 128  # samples before a shape that took too long is tried again; doubles with every loss


@dataclass
class _Ratio:
    """Of what was seen to what was expected, both in sum: what takes long, or is likely, weighs more."""

    horizon: float  # of what was expected, after which it is old
    seen: float
    expected: float
    most: float = math.inf

    @classmethod
    def even(cls, weight: float, horizon: float, most: float = math.inf) -> "_Ratio":
        """Nothing has been seen; `weight` of it is taken to be as expected."""
        return cls(horizon, weight, weight, most)

    @property
    def value(self) -> float:
        """The ratio, as far as it can be."""
        return min(self.most, self.seen / self.expected)

    @property
    def certainty(self) -> float:
        """From 0, where little has been seen, to nearly 1."""
        return 1.0 - min(1.0, 2 * _EVEN_TOKENS / self.expected)

    def add(self, seen: float, expected: float, weight: float = 1.0) -> None:
        """One more."""
        kept = max(0.0, 1.0 - weight * expected / self.horizon)
        self.seen = kept * self.seen + weight * seen
        self.expected = kept * self.expected + weight * expected


class _Hits:
    """Shares of tokens that are the first candidate, and any of as many as there are drafts at a position."""

    def __init__(self, prior: float) -> None:
        self.first = Average(prior, _PRIOR_WEIGHT)
        self.any_of = Average(prior, _PRIOR_WEIGHT)


def _within(rank: int | None, breadth: int) -> bool:
    """Whether a token of this rank, None where it is no candidate, is among the first so many."""
    return rank is not None and rank < breadth


class _Known:
    """What is known of one shape, whatever the text."""

    def __init__(self, shape: Shape, most: float) -> None:
        # By place in a frame: what drafts there are right for, as a share of the least shape's, and `most` of it.
        self.depths = [_Ratio.even(_EVEN_TOKENS, _DEPTH_HORIZON, most) for _ in range(shape.width)]
        self.pace: _Ratio | None = None  # seconds that samples took, in cycles of one token; None: not taken yet
        self.wait = _FIRST_WAIT
        self.due = 0  # sample, counted, before which it is not taken


class Shapes:
    """What is known of every shape with one drafter, across requests."""

    def __init__(
        self, stages: int, costs: FrameCosts, prior: float, shapes: Sequence[Shape], *, lagging: bool = False
    ) -> None:
        """`prior` is the share of tokens that have a right draft, before any is made; the least shape is the first.

        `lagging`: the wider frames are, the less is known to the drafter of the newest tokens, so that even the first
        draft of a wide frame is not what a frame of one token would have.
        """
        self._stages = stages
        self._lagging = lagging
        self._costs = costs
        # What further candidates are worth is seen before any of them is sent, so nothing is hoped of them.
        breadths = dict.fromkeys(shape.breadth for shape in shapes)
        self._hits = {breadth: {missed: _Hits(prior) for missed in (False, True)} for breadth in breadths}
        self._rank: int | None = None  # of the newest token
        self._follows = 0.0  # the probability that the least shape would have held it
        self._known = {shape: _Known(shape, 1.0 if lagging else math.inf) for shape in shapes}
        self._least = shapes[0]
        self._samples = 0
        self._seconds = 0.0
        self._lost = 0.0  # seconds, to other shapes than the least; less than none where they have gained
        self._settling = 0  # samples that are still of the shape before
        self._first = False  # the last sample was of a frame that found the pipeline empty
        self.current = self._least

    def begin(self) -> None:
        """Another request, whose text may be another kind."""
        self._settling = 0
        self._rank, self._follows = None, 0.0
        for states in self._hits.values():
            for hits in states.values():
                hits.first.weight = min(hits.first.weight, _MEMORY_WEIGHT)
                hits.any_of.weight = min(hits.any_of.weight, _MEMORY_WEIGHT)

    def seconds(self, shape: Shape) -> float:
        """Seconds a token."""
        mine = [depth.value for depth in self._known[shape].depths]
        if shape.width < self.current.width:  # drafts that look less far ahead are at least as good
            mine = [max(own, seen.value) for own, seen in zip(mine, self._known[self.current].depths, strict=False)]
        missed, right = self._held(shape, missed=True), self._held(shape, missed=False)
        return self._pace(shape) * seconds_per_token(self._stages, self._costs, shape, missed, right, mine)

    def sampled(
        self, seconds: float | None, verdicts: Sequence[bool], ranks: Sequence[int | None], *, refilled: bool
    ) -> Shape:
        """A frame's sample came `seconds` after the one before, with `verdicts` on the drafts for its tokens, in order.

        `ranks` are the places of these tokens among the candidates, from 0, and None where they were none; a token
        without a draft counts as one that was drafted wrong. `seconds` is None where that says nothing of the shape;
        `refilled`: the frame found the pipeline empty. Returns the shape of the frames to come.
        """
        self._samples += 1
        self._settling = 0 if refilled else max(0, self._settling - 1)
        settled, spared = not self._settling, 0.0
        for count, (right, rank) in enumerate(zip(verdicts, ranks, strict=True), 1):
            place = count % self.current.width  # the last is the first of the next frame
            depth = self._known[self.current].depths[place]
            # As of drafts that look no further ahead than the least do; others say little before they are known, or,
            # where all of them know less than the least's, nothing: what is usual could not be told from what is lost.
            weight = depth.value * (1.0 if self._as_of_least(place) else 0.0 if self._lagging else depth.certainty)
            spared += self._least_seconds(rank, depth.value)
            if settled:
                self._judge(place, right=right)
            for breadth, states in self._hits.items():
                hits = states[not _within(self._rank, breadth)]
                hits.first.add((rank == 0) / depth.value, weight)
                hits.any_of.add(_within(rank, breadth) / depth.value, weight)
                hits.first.age(_TEXT_HORIZON)
                hits.any_of.age(_TEXT_HORIZON)
            self._rank = rank
        if seconds is not None:
            if not self._costs.stage:  # frames of one token give the scale
                self._costs = self._costs._replace(stage=seconds / (self._stages if refilled else 1))
            if settled:
                self._time(seconds, refilled=refilled)
            self._seconds += seconds
            if self.current != self._least:
                gain = self._pace(self._least) * spared - seconds
                self._lost = max(self._lost - gain, -_GAIN_REFILLS * self._refill)
        self._first = refilled
        return self._choose()

    def _least_seconds(self, rank: int | None, depth: float) -> float:
        """What a token of this rank would have taken in the least shape, in which fewer drafts look too far ahead.

        By what has come, and not by what is usual: text that is hard for one shape is hard for all.
        """
        costs, least, follows = self._costs, self._least, self._follows
        usual = min(self._held(least, missed=not _within(self._rank, least.breadth)), 1.0 - _UNLIKELY)
        deep = min(1.0, depth) * usual
        self._follows = 1.0 if _within(rank, least.breadth) else (usual - deep) / (1.0 - deep)
        return follows * costs.cycle(least) / least.width + (1.0 - follows) * costs.refill(self._stages, least)

    def _held(self, shape: Shape, *, missed: bool) -> float:
        """The share of positions whose token is in frames of a shape, where the one before was missed, or was not."""
        hits = self._hits[shape.breadth][missed]
        return held(self._stages, shape, hits.first.value, hits.any_of.value)

    def _as_of_least(self, place: int) -> bool:
        """Whether drafts at this place look no further ahead, and from as much, as those of the least shape."""
        return place == 0 and not (self._lagging and self.current.width > self._least.width)

    def _judge(self, place: int, *, right: bool) -> None:
        """Drafts at this place have held the token or not; those of wider frames look as far ahead, or further.

        All are compared with the first behind a frame, of one draft a position: so far ahead the least shape looks. Of
        a drafter that lags it is that of a frame of one token.
        """
        if self._as_of_least(place) and self.current.breadth == self._least.breadth:
            return
        current, deepest = self.current, place == self.current.width - 1
        expected = self._held(current, missed=not _within(self._rank, current.breadth))
        for shape, known in self._known.items():
            if shape.covers(current):
                for at in range(place, shape.width if deepest else place + 1):
                    known.depths[at].add(float(right), expected, 1.0 if shape == current else _NEIGHBOUR)

    def _time(self, seconds: float, *, refilled: bool) -> None:
        costs, shape = self._costs, self.current
        if refilled:
            expected = costs.refill(self._stages, shape)
        else:
            expected = costs.second(self._stages, shape) if self._first else costs.cycle(shape)
        known = self._known[shape]
        pace = known.pace = known.pace or _Ratio(_PACE_HORIZON, _PACE_CYCLES * self._pace(shape), _PACE_CYCLES)
        seen = min(seconds, _OUTLIER * pace.value * expected)
        pace.add(seen / costs.stage, expected / costs.stage)

    def _pace(self, shape: Shape) -> float:
        """Times of what is expected that samples of a shape take: whatever is slow for few rows is so for more."""
        own = self._known[shape].pace
        if own is not None:
            return own.value
        seen = [known.pace.value for other, known in self._known.items() if known.pace and shape.covers(other)]
        return max(seen, default=1.0)

    @property
    def _refill(self) -> float:
        """Seconds."""
        return self._stages * self._costs.stage

    def _choose(self) -> Shape:
        if not self._costs.stage or (self._lagging and self._samples < _FIRST_LOOK):
            return self.current
        affordable = self._lost <= _LOSS_SHARE * self._seconds + _LOSS_REFILLS * self._refill
        open_to = [shape for shape in self._known if shape == self._least or (affordable and self._is_due(shape))]
        best = min(open_to, key=self.seconds)
        if not affordable and self.current != self._least:
            self._leave(self.current)
            self._take(self._least)
        if self.seconds(best) < (1 - _BETTER) * self.seconds(self.current):
            for shape in self._known:
                if shape != best and shape.covers(best) and self.current.covers(shape) and self._is_slow(shape):
                    self._leave(shape)
            self._take(best)
        return self.current

    def _take(self, shape: Shape) -> None:
        self.current, self._settling = shape, self._stages + 1

    def _is_slow(self, shape: Shape) -> bool:
        """Whether it took longer than it should, which nobody can see who does not take it."""
        return self._pace(shape) > (1 + _SLOW) * self._pace(self._least)

    def _is_due(self, shape: Shape) -> bool:
        return self._known[shape].due <= self._samples

    def _leave(self, shape: Shape) -> None:
        """It has lost: it is not taken for a while, and then believed anew."""
        known = self._known[shape]
        known.due, known.wait = self._samples + known.wait, 2 * known.wait
        known.pace = None


class ShapeOfFrames:
    """Chooses for every request of an engine: each drafter has shapes of its own."""

    def __init__(self, stages: int, shapes: Sequence[Shape], costs: Callable[[Choice], FrameCosts]) -> None:
        """One of the `shapes`, the least of which is the first; `costs` says what is known of a drafter by now."""
        self._stages = stages
        self._shapes = shapes
        self._costs = costs
        self._chosen: dict[str, Shapes] = {}

    def of(self, choice: Choice, *, crowded: bool = False) -> Shape:
        """Of frames with the drafter that is in use.

        Where the requests that run fill the pipeline with verified tokens (`crowded`), none of them waits for drafts.
        """
        return self._shapes[0] if crowded else self._of(choice).current

    def begin(self, choice: Choice) -> None:
        """A request starts."""
        self._of(choice).begin()

    def sampled(
        self,
        choice: Choice,
        seconds: float | None,
        verdicts: Sequence[bool],
        ranks: Sequence[int | None],
        *,
        refilled: bool,
    ) -> None:
        """What `Shapes.sampled` wants to know, of a frame that `choice` has filled."""
        if len(self._shapes) > 1:
            self._of(choice).sampled(seconds, verdicts, ranks, refilled=refilled)

    def _of(self, choice: Choice) -> Shapes:
        if choice.name not in self._chosen:
            self._chosen[choice.name] = Shapes(
                self._stages, self._costs(choice), choice.prior, self._shapes, lagging=choice.listens
            )
        return self._chosen[choice.name]
