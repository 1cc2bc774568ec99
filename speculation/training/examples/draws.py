"""What is drawn at random in a step: the split, the positions that count, and the fill of each."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from speculation.decisions.features import (
    ChainRow,
    FeatureMap,
    MaskRule,
    RowRule,
    authors_chain_rows,
    chain_rows,
    steady_since,
)
from workers.decisions.split import balance


@dataclass(frozen=True)
class ChainRowAt:
    """An unfinished row of a chain: absolute position, feature type, and what it sees.

    It sees the chain's own rows `own`, given by their place in the chain (0 is the newest token), and the finished
    rows of positions 0..finished - 1.
    """

    position: int
    kind: int
    own: range
    finished: int


@dataclass(frozen=True)
class Chain:
    """All unfinished rows of the drafts of one frame, newest first; the output of a row predicts the next position.

    Of an exit head there are none: its newest row is a finished one.
    """

    newest: int  # position
    rows: tuple[ChainRowAt, ...]
    final_kind: int  # feature type of finished rows
    drafts: int = 1  # so many outputs count, from the newest row's on

    @property
    def finished(self) -> int:
        """How many finished rows its rows see, or its newest row is the last of."""
        return max((row.finished for row in self.rows), default=self.newest + 1)


def build_chain(
    features: FeatureMap,
    newest: int,
    since: int,
    rule: MaskRule = MaskRule.CORRECTED,
    *,
    width: int = 1,
    drafts: int = 1,
) -> Chain:
    """The chain of the draft after position `newest`, which is number `since` of its epoch (1: the origin).

    `width` is the number of tokens of a frame, `drafts` how many drafts of the frame count; the authors' rule is for
    frames of one token.
    """
    if features.first == features.last:
        unfinished: tuple[ChainRow, ...] = ()
    elif rule is MaskRule.CORRECTED:
        unfinished = chain_rows(features.stages, steady_since(features.stages, width, since), width)
    else:
        unfinished = authors_chain_rows(features.stages, min(features.stages, since))
    rows = tuple(
        ChainRowAt(newest - row.back, features.kind(row.depth), range(row.back, row.last + 1), newest - row.last)
        for row in unfinished
    )
    return Chain(newest, rows, features.final_kind, drafts)


def random_split(rng: random.Random, layers: int, head: float, stages: int) -> tuple[int, ...]:
    """An uneven split: each stage's share of the work, the head (in layers) included, varies by up to 40 %.

    Every stage but the last has at least one layer. `stages` is at most layers + 1.
    """
    weights = [rng.uniform(0.6, 1.4) for _ in range(stages)]
    scale = (layers + head) / sum(weights)
    split: list[int] = []
    end, ideal = 0, 0.0
    for stage, weight in enumerate(weights[:-1]):
        ideal += weight * scale
        later = stages - 2 - stage
        next_end = min(max(round(ideal), end + 1), layers - later)
        split.append(next_end - end)
        end = next_end
    return (*split, layers - end)


class SplitDraw:
    """Draws splits: from a fixed list, or balanced and uneven ones for several numbers of stages."""

    def __init__(
        self,
        anchors: tuple[int, ...],
        layer_bytes: Sequence[int],
        head_bytes: int,
        *,
        stages: tuple[int, ...],
        splits: tuple[tuple[int, ...], ...],
        uneven: float,
        rule: RowRule = RowRule.IN_FLIGHT,
    ) -> None:
        """Raises `ConfigError` where one of the usual splits has no exit in stage 0, for an exit head."""
        self._anchors = anchors
        self._layers = len(layer_bytes)
        self._head = head_bytes * len(layer_bytes) / sum(layer_bytes)
        self._uneven = uneven if rule is RowRule.IN_FLIGHT else 0.0  # an exit head knows the end of stage 0 alone
        balanced = tuple(balance(layer_bytes, head_bytes, count) for count in stages)
        self.usual = tuple(FeatureMap(anchors, split, rule) for split in (*splits, *balanced))
        for features in self.usual:
            features.check_read()
        self._fixed = bool(splits)

    def draw(self, rng: random.Random) -> FeatureMap:
        """One split."""
        usual = rng.choice(self.usual)
        if self._fixed or rng.random() >= self._uneven:
            return usual
        return FeatureMap(self._anchors, random_split(rng, self._layers, self._head, usual.stages))


def draw_since(rng: random.Random, acceptance: float, most: int) -> int:
    """How many tokens a verified draft has behind it in its epoch, the origin included: 1..`most`.

    A draft is verified if all before it in its epoch were accepted, each with probability `acceptance`; an epoch is as
    old as the prompt at most.
    """
    since = 1
    while since < most and rng.random() < acceptance:
        since += 1
    return since


def draw_chains(
    rng: random.Random,
    features: FeatureMap,
    newest: range,
    *,
    share: float,
    acceptance: float,
    rule: MaskRule,
    width: int = 1,
) -> list[Chain]:
    """Chains for about `share` of the positions `newest` of one example, whose first is the first after the prompt.

    With frames of several tokens a chain has all drafts of the frame that are of this example.
    """
    chains = []
    for position in newest:
        # The authors' rule reaches back further than the tokens in flight, so it needs that many tokens.
        if rng.random() * width >= share or (rule is MaskRule.AUTHORS and position < features.stages):
            continue
        since = draw_since(rng, acceptance, position - newest.start + 1)
        place = since % width  # in its frame; the first of an epoch's first frame is its origin, and no draft
        after = min(width - 1 - place, newest.stop - 1 - position)
        drafts = min(place + 1, since) + after
        chains.append(build_chain(features, position + after, since + after, rule, width=width, drafts=drafts))
    return chains
