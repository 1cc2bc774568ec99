"""Which hidden states a token owns when it is drafted from, and which rows the draft module computes.

Pure rules of Speculative Pipeline Decoding (arXiv 2605.30852), defined for any split. Hidden-state index 0 is the
embedding, index k the residual stream after decoder layer k - 1, before the final norm. The depth of a token is the
number of stages it has completed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from workers.shared.errors import ConfigError


def check_anchors(anchors: Sequence[int], layers: int) -> None:
    """Raises `ConfigError` unless `anchors` are usable hidden-state indices of a target with `layers` layers."""
    if not anchors or anchors[0] != 0:
        raise ConfigError(f"anchors {list(anchors)}: the first must be 0, the embedding")
    if any(later <= earlier for earlier, later in pairwise(anchors)):
        raise ConfigError(f"anchors {list(anchors)}: they must increase strictly")
    if anchors[-1] > layers:
        raise ConfigError(f"anchors {list(anchors)}: the target has {layers} layers, so the last may be {layers}")


def check_fixed_stages(anchors: Sequence[int], stages: int) -> None:
    """Raises `ConfigError` where `anchors` cannot belong to a module made for `stages` stages and no other number."""
    if stages < 2:
        raise ConfigError(f"num_stages is {stages}; a draft module needs at least 2")
    if len(anchors) > stages + 1:
        raise ConfigError(
            f"anchors {list(anchors)}: {len(anchors)} of them, but {stages} stages tell only {stages + 1} depths apart"
        )


def auto_anchors(layers: int, stages: int) -> tuple[int, ...]:
    """The authors' rule for anchors; `stages` must divide `layers`. The result may still fail `check_fixed_stages`."""
    if stages < 1 or layers % stages:
        raise ConfigError(f"automatic anchors need a number of stages that divides {layers} layers, not {stages}")
    size = layers // stages
    return tuple(sorted({min(max(index, 0), layers) for index in (0, size, 3 * size, 6 * size, layers - 1)}))


class RowRule(StrEnum):
    """When the rows of a token are computed."""

    IN_FLIGHT = "in flight"  # as soon as it is in the pipeline, and again whenever it is one stage deeper (SPD)
    EXIT = "exit"  # once, when it has left stage 0: an exit head (PPSD)


@dataclass(frozen=True)
class FeatureMap:
    """The map depth -> feature type of one split. Type i reads the anchors 0..i, and `anchors[0]` is the embedding.

    A module that serves any number of stages has more anchors than one split can tell apart; types that no depth maps
    to are not used by that split.
    """

    anchors: tuple[int, ...]
    split: tuple[int, ...]  # decoder layers a stage; the last may be 0
    rule: RowRule = RowRule.IN_FLIGHT

    def __post_init__(self) -> None:
        if not self.split or any(count < 1 for count in self.split[:-1]) or self.split[-1] < 0:
            raise ConfigError(f"split {list(self.split)}: every stage but the last needs at least 1 layer")
        check_anchors(self.anchors, sum(self.split))

    @property
    def stages(self) -> int:
        """Number of stages, n: the depth of a finished token."""
        return len(self.split)

    @property
    def first(self) -> int:
        """Depth of the newest token when the next is drafted."""
        return 0 if self.rule is RowRule.IN_FLIGHT else 1

    @property
    def last(self) -> int:
        """Depth at which a token's row is final."""
        return self.stages if self.rule is RowRule.IN_FLIGHT else 1

    @property
    def final_kind(self) -> int:
        """Feature type of final rows."""
        return self.kind(self.last)

    @property
    def read(self) -> tuple[int, ...]:
        """The anchors that any row reads, without the embedding."""
        return self.anchors[1 : self.final_kind + 1]

    def check_read(self) -> None:
        """Raises `ConfigError` where an exit head has no exit in stage 0."""
        if self.rule is RowRule.EXIT and not self.read:
            raise ConfigError(
                f"--split {','.join(map(str, self.split))}: stage 0 has {self.split[0]} layers, and the exit head's "
                f"exits are behind {', '.join(map(str, self.anchors[1:]))}; use fewer stages, a --split with a longer "
                f"first stage, or another exit head"
            )

    def available(self, depth: int) -> int:
        """Highest hidden-state index that a token of `depth` owns: the end layer of stage depth - 1."""
        return sum(self.split[:depth])

    def kind(self, depth: int) -> int:
        """Feature type of a token of `depth`: the last anchor that it owns."""
        owned = self.available(depth)
        return max(index for index, anchor in enumerate(self.anchors) if anchor <= owned)

    def kinds(self) -> tuple[int, ...]:
        """Feature type of each depth 0..n."""
        return tuple(self.kind(depth) for depth in range(self.stages + 1))


class Row(NamedTuple):
    """One row of the draft module: a token and the depth whose features stand for it."""

    position: int
    depth: int


@dataclass(frozen=True)
class DraftPlan:
    """Rows of one draft, in ascending position; the last is the newest token, whose output predicts the next.

    The first `persistent` rows are final: they stay in the cache until a rollback. The others are computed again,
    from deeper features, for the next draft.
    """

    rows: tuple[Row, ...]
    persistent: int


def plan_draft(last: int, origin: int, newest: int, cached: int, width: int = 1, first: int = 0) -> DraftPlan:
    """Rows to compute for the draft of position newest + 1: from `first` stages deep to `last`, where they are final.

    `origin` is the first position of the epoch: the first token after the prompt, or the correction that followed the
    last rejection. Older tokens are finished, whatever their distance. `cached` is the number of persistent rows that
    the cache holds. `width` is the number of tokens of a frame: those of the frame that the draft is for, and of the
    one before it, own the embedding only; those of one frame more have one stage behind them, and so on.
    Where frames were narrower before, more rows may be final already than those of such frames would be.
    The plan depends on positions alone, so a draft never depends on when anchors arrive.
    Raises `ValueError` where the cache holds rows that are not final.
    """
    frame = (newest + 1 - origin) // width
    if not 0 <= cached <= max(origin, newest - last + 1) or origin > newest:
        raise ValueError(f"{cached} cached rows, origin {origin}, newest {newest}: rows in the cache must be final")
    rows = tuple(
        Row(
            position,
            last if position < origin else min(last, max(first, frame - (position - origin) // width - 1)),
        )
        for position in range(cached, newest + 1)
    )
    return DraftPlan(rows, sum(row.depth == last for row in rows))


class MaskRule(StrEnum):
    """How the training mask treats a pipeline that is not full."""

    CORRECTED = "corrected"  # what inference does
    AUTHORS = "authors"  # compares the distance alone with the fill: wrong for rows deeper than 0


def visible_depth(rule: MaskRule, stages: int, fill: int, query_depth: int, distance: int) -> int:
    """Depth of the one row that a row of `query_depth` sees of the token `distance` >= 0 positions before its own.

    `fill` is the number of tokens in flight, 1..stages.
    """
    depth = min(stages, query_depth + distance)
    reached = depth if rule is MaskRule.CORRECTED else distance
    return stages if reached >= fill else depth


class ChainRow(NamedTuple):
    """A row of a draft in training: the token `back` positions before the newest, with the features of `depth`.

    It sees the chain's rows from its own `back` to `last`, and the finished rows of all tokens before those.
    """

    back: int
    depth: int
    last: int


def chain_rows(stages: int, since: int, width: int = 1) -> tuple[ChainRow, ...]:
    """The unfinished rows that one draft depends on, newest first, where the origin is `since` - 1 tokens back.

    Each sees all of them that are older, so those of one draft of a frame hold what its earlier drafts depend on.
    Drafts of different frames share nothing but the finished rows: each frame can be trained on its own, with a split,
    a width and an origin of its own.
    """
    newest = since - 1
    plan = plan_draft(stages, 0, newest, 0, width)
    rows = [row for row in plan.rows if row.depth < stages]
    return tuple(ChainRow(newest - row.position, row.depth, len(rows) - 1) for row in reversed(rows))


def authors_chain_rows(stages: int, fill: int) -> tuple[ChainRow, ...]:
    """The rows of a draft of one token a frame by the authors' mask, with `fill` tokens in flight, 1..stages.

    A row of depth d at position t - d sees, of unfinished rows, only those of depth d' at t - d'.
    """
    if not 1 <= fill <= stages:
        raise ValueError(f"fill {fill} of {stages} stages")
    rows: list[ChainRow] = []
    reach = 0
    for depth in range(stages):
        if depth > reach:
            break
        seen = depth
        while seen + 1 < stages and visible_depth(MaskRule.AUTHORS, stages, fill, depth, seen + 1 - depth) == seen + 1:
            seen += 1
        rows.append(ChainRow(depth, depth, seen))
        reach = max(reach, seen)
    return tuple(rows)


def steady_since(stages: int, width: int, since: int) -> int:
    """The smallest distance from the origin with the rows of `since`: where frames are full, they repeat."""
    full = stages * width
    return since if since < full else full + (since - full) % width
