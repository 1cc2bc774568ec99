"""How many tokens a frame holds, so that wide frames never lose. No torch, no sockets, no clock.

Wide frames pay where drafts are right and come fast, and where a stage takes little longer for several rows. The
speed law says how much, from what is known before anything is tried: times of the calibration, and how many tokens had
a right draft lately. What a width really takes is compared with that, so that a wrong belief is left within a few
samples, and not tried again soon.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from speculation.decisions.estimates import Average, Choice
from workers.shared.config import WIDTHS
from workers.shared.emulation import cost_of_rows

_TEXT_HORIZON = 64.0  # tokens after which what was right in a request is old
_MEMORY_WEIGHT = 24.0  # tokens that earlier requests are worth at most
_PACE_HORIZON = 64.0  # samples after which a time is old
_NEIGHBOUR = 0.5  # of what is seen of one width, for the others
_BETTER = 0.03  # gain for which another width is taken
_OUTLIER = 2.0  # a sample may take so many times what was expected; the rest is somebody else's doing
_LOSS_SHARE = 0.01  # of all time may be lost to widths that turn out worse than one token a frame
_LOSS_SAMPLES = 4.0  # that may be lost beyond that
_GAIN_SAMPLES = 16.0  # that may be lost again after they have been gained
_FIRST_WAIT = 128  # samples before a width that lost is tried again; doubles with every loss


class WidthCosts(NamedTuple):
    """What is known of a drafter's pipeline before it is tried."""

    stage: float = 0.0  # seconds between two samples of frames of one token; 0: to be seen
    draft: float = 0.0  # seconds
    rows: tuple[float, ...] = ()  # a stage's time for frames of 1, 2, 4, 8, ... tokens, in times of one
    breadth: int = 1  # drafts for each position of a frame

    def cycle(self, width: int) -> float:
        """Seconds between two samples of full frames: of the stages, or of as many drafts where those take longer."""
        return max(self.stage * cost_of_rows(self.rows, width * self.breadth), width * self.draft)

    def refill(self, stages: int, width: int) -> float:
        """Seconds until the sample of a frame that found the pipeline empty, its drafts not made yet."""
        rows = 1 + (width - 1) * self.breadth
        return stages * self.stage * cost_of_rows(self.rows, rows) + (width - 1) * self.draft


class _Width:
    """What is known of one width."""

    def __init__(self, width: int, prior: float) -> None:
        self.right = [Average(prior) for _ in range(width)]  # shares of drafts, by their place in a frame, from 0
        self.pace = Average(1.0)  # times of what was expected that a sample took
        self.wait = _FIRST_WAIT
        self.due = 0  # sample, counted, before which it is not taken

    def saw(self, place: int, *, right: bool, weight: float, deepest: bool) -> None:
        """A draft at this place was right or not; if it is the `deepest` that was seen, those behind are like it."""
        for at in range(place, len(self.right) if deepest else place + 1):
            self.right[at].add(right, weight)


class Widths:
    """What is known of every width with one drafter, across requests."""

    def __init__(self, stages: int, costs: WidthCosts, prior: float, most: int = WIDTHS[-1]) -> None:
        """`prior` is the share of tokens that have a right draft, before any is made; no frame is wider than `most`."""
        self._stages = stages
        self._costs = costs
        self._known = {width: _Width(width, prior) for width in WIDTHS if width <= most}
        self._samples = 0
        self._seconds = 0.0
        self._lost = 0.0  # seconds, to wide frames; less than none where they have gained
        self.current = 1

    def begin(self) -> None:
        """Another request, whose text may be another kind."""
        for known in self._known.values():
            for right in known.right:
                right.weight = min(right.weight, _MEMORY_WEIGHT)

    def seconds(self, width: int) -> float:
        """Seconds a token.

        Of a run of tokens between two wrong drafts, one frame finds the pipeline empty and the others follow. A frame
        yields the token behind its first one, and one more for each draft that is right in a row; another follows if
        all are, and the first draft of that one.
        """
        known, costs = self._known[width], self._costs
        first, *others = (right.value for right in known.right)
        tokens = reach = 1.0
        for right in others:
            reach *= right
            tokens += reach
        follows = reach * first
        cycle, refill = costs.cycle(width), costs.refill(self._stages, width)
        return known.pace.value * ((1 - follows) * refill + follows * cycle) / tokens

    def sampled(self, seconds: float | None, verdicts: Sequence[bool], *, refilled: bool) -> int:
        """A frame's sample came `seconds` after the one before, with `verdicts` on the drafts for its tokens, in order.

        A token without a draft counts as a wrong one. `seconds` is None where that says nothing of the width;
        `refilled`: the frame found the pipeline empty. Returns the width of the frames to come.
        """
        self._samples += 1
        for width, known in self._known.items():
            if width < self.current:
                continue
            for count, right in enumerate(verdicts, 1):
                place = count % self.current  # the last is the first of the next frame
                weight = 1.0 if width == self.current else _NEIGHBOUR
                known.saw(place, right=right, weight=weight, deepest=place == self.current - 1)
            for share in known.right:
                share.age(_TEXT_HORIZON)
        for width, known in self._known.items():
            if width < self.current:  # drafts that look less far ahead are at least as good
                for mine, seen in zip(known.right, self._known[self.current].right, strict=False):
                    mine.value = max(mine.value, seen.value)
        if seconds is not None:
            if not self._costs.stage:  # frames of one token give the scale
                self._costs = self._costs._replace(stage=seconds / (self._stages if refilled else 1))
            self._time(seconds, refilled=refilled)
            self._seconds += seconds
            if self.current > 1:
                gain = len(verdicts) * self.seconds(1) - seconds
                self._lost = max(self._lost - gain, -_GAIN_SAMPLES * self._costs.stage)
        return self._choose()

    def _time(self, seconds: float, *, refilled: bool) -> None:
        costs, width = self._costs, self.current
        expected = costs.refill(self._stages, width) if refilled else costs.cycle(width)
        pace = self._known[width].pace
        before = pace.value
        pace.add(min(seconds / expected, _OUTLIER * before))
        pace.age(_PACE_HORIZON)
        for other, known in self._known.items():
            if other > width:  # whatever is slow for few rows is so for more
                known.pace.value *= pace.value / before

    def _choose(self) -> int:
        if not self._costs.stage:
            return self.current
        affordable = self._lost <= _LOSS_SHARE * self._seconds + _LOSS_SAMPLES * self._costs.stage
        best = min(
            (width for width in self._known if width == 1 or (affordable and self._is_due(width))), key=self.seconds
        )
        if not affordable and self.current > 1:
            self._leave(self.current)
            self.current = 1
        if self.seconds(best) < (1 - _BETTER) * self.seconds(self.current):
            for width in self._known:
                if best < width <= self.current:
                    self._leave(width)
            self.current = best
        return self.current

    def _is_due(self, width: int) -> bool:
        return self._known[width].due <= self._samples

    def _leave(self, width: int) -> None:
        """It has lost: it is not taken for a while, and then believed anew."""
        known = self._known[width]
        known.due, known.wait = self._samples + known.wait, 2 * known.wait
        known.pace = Average(self._known[1].pace.value)


class WidthOfFrames:
    """Chooses for every request of an engine: each drafter has widths of its own."""

    def __init__(self, stages: int, tokens_per_frame: int | None, costs: Callable[[Choice], WidthCosts]) -> None:
        """`tokens_per_frame` is fixed, or None; `costs` says what has been measured of a drafter by now."""
        self.at_first = tokens_per_frame or 1
        self._stages = stages
        self._fixed = tokens_per_frame
        self._costs = costs
        self._widths: dict[str, Widths] = {}

    def of(self, choice: Choice, *, crowded: bool = False) -> int:
        """Tokens a frame with the drafter that is in use.

        Where the requests that run fill the pipeline with verified tokens (`crowded`), none of them waits for drafts.
        """
        if self._fixed is not None:
            return self._fixed
        return 1 if crowded else self._of(choice).current

    def begin(self, choice: Choice) -> None:
        """A request starts."""
        if choice.name in self._widths:
            self._widths[choice.name].begin()

    def sampled(self, choice: Choice, seconds: float | None, verdicts: Sequence[bool], *, refilled: bool) -> None:
        """What `Widths.sampled` wants to know, of a frame that `choice` has filled."""
        if self._fixed is None:
            self._of(choice).sampled(seconds, verdicts, refilled=refilled)

    def _of(self, choice: Choice) -> Widths:
        if choice.name not in self._widths:
            self._widths[choice.name] = Widths(self._stages, self._costs(choice), choice.prior)
        return self._widths[choice.name]


def row_costs(seconds: Mapping[int, float]) -> tuple[float, ...]:
    """Of a stage's frames of 1, 2, 4, 8, ... tokens in those of one, from `seconds` of frames of so many tokens.

    More tokens never take less time, whatever was measured. Nothing where none of one token were.
    """
    costs: list[float] = []
    for width in WIDTHS:
        if width not in seconds or seconds[1] <= 0:
            break
        costs.append(max(seconds[width] / seconds[1], *costs, 1.0))
    return tuple(costs)
