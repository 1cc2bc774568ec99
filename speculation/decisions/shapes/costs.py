"""Seconds a token with frames of a shape, from what is known of stages, drafts and text. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from workers.shared.config import MEASURED_ROWS
from workers.shared.emulation import cost_of_rows
from workers.shared.frames import Shape

_ENDLESS = 1e-9  # the least probability of a miss


class FrameCosts(NamedTuple):
    """What is known of a drafter's pipeline before it is tried."""

    stage: float = 0.0  # seconds between two samples of frames of one token; 0: to be seen
    draft: float = 0.0  # seconds, for one position
    rows: tuple[float, ...] = ()  # a stage's time for frames of 1, 2, 4, 8, ... tokens, in times of one

    def cycle(self, shape: Shape) -> float:
        """Seconds between two samples of full frames: of the stages, or of as many drafts where those take longer."""
        return max(self.stage * cost_of_rows(self.rows, shape.rows), shape.width * self.draft)

    def refill(self, stages: int, shape: Shape) -> float:
        """Seconds until the sample of a frame that found the pipeline empty, its drafts not made yet."""
        return stages * self._first(shape) + (shape.width - 1) * self.draft

    def second(self, stages: int, shape: Shape) -> float:
        """Seconds from there to the sample of the frame behind it, which has more rows and so falls back."""
        behind = self.stage * cost_of_rows(self.rows, shape.rows) - self._first(shape)
        return self.cycle(shape) + (stages - 1) * max(0.0, behind)

    def _first(self, shape: Shape) -> float:
        return self.stage * cost_of_rows(self.rows, 1 + (shape.width - 1) * shape.breadth)


def seconds_per_token(
    stages: int, costs: FrameCosts, shape: Shape, missed: float, right: float, depths: Sequence[float]
) -> float:
    """Seconds a token, where frames hold the share `missed` of tokens behind one that they missed, `right` of others.

    `depths` are what that is multiplied by at each place in a frame, from 0. Of the frames between two misses, the
    first finds the pipeline empty and the others follow. A frame yields the token behind its first one, and one more
    for each place that is right in a row, from 1 on; another follows if all are, and place 0, the first of that one.
    """
    order = [*depths[1:], depths[0]]
    shares = [min(1.0, right * depth) for depth in order]
    tokens, follows = _frame([min(1.0, missed * order[0]), *shares[1:]])
    later, goes_on = _frame(shares)
    others = follows / max(1.0 - goes_on, _ENDLESS)  # frames that follow
    seconds = costs.refill(stages, shape) + follows * costs.second(stages, shape)
    seconds += (others - follows) * costs.cycle(shape)
    return seconds / (tokens + others * later)


def _frame(shares: Sequence[float]) -> tuple[float, float]:
    """Tokens of a frame whose places are right with these probabilities, and the probability that another follows."""
    tokens = reach = 1.0
    for share in shares[:-1]:
        reach *= share
        tokens += reach
    return tokens, reach * shares[-1]


def held(stages: int, shape: Shape, first: float, any_of: float) -> float:
    """The share of positions whose token is in a frame of a shape, drafts that look further ahead being as good.

    `first` is the share whose token is the first candidate, `any_of` that whose token is among as many as the shape has
    drafts at a position. Those stand behind all drafts at the position before. The further ahead of the verified text,
    the more of them are first candidates behind something else. What is left of the others is a fit to the event
    simulation (`tests/simulation/test_shape_costs.py`).
    """
    return first + min(1.0, 0.4 + 1.2 / (stages * shape.width)) * (any_of - first)


def row_costs(seconds: Mapping[int, float]) -> tuple[float, ...]:
    """Of a stage's frames of 1, 2, 4, 8, ... tokens in those of one, from `seconds` of frames of so many tokens.

    More tokens never take less time, whatever was measured. Nothing where none of one token were.
    """
    costs: list[float] = []
    for rows in MEASURED_ROWS:
        if rows not in seconds or seconds[1] <= 0:
            break
        costs.append(max(seconds[rows] / seconds[1], *costs, 1.0))
    return tuple(costs)
