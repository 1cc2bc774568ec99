"""What is drawn at random in a step: the split, the positions that count, and the fill of each."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from speculation.decisions.features import FeatureMap, MaskRule, RowRule, chain_rows, fill_weights
from workers.decisions.split import balance


@dataclass(frozen=True)
class ChainRowAt:
    """An unfinished row of one draft: absolute position, feature type, and what it sees.

    It sees the chain's own rows `own`, given by their place in the chain (0 is the newest token), and the finished
    rows of positions 0..finished - 1.
    """

    position: int
    kind: int
    own: range
    finished: int


@dataclass(frozen=True)
class Chain:
    """All unfinished rows of one draft, newest first; the output of the first row predicts position newest + 1.

    Of an exit head there are none: its newest row is a finished one.
    """

    newest: int  # position
    rows: tuple[ChainRowAt, ...]
    final_kind: int  # feature type of finished rows

    @property
    def finished(self) -> int:
        """How many finished rows its rows see, or its newest row is the last of."""
        return max((row.finished for row in self.rows), default=self.newest + 1)


def build_chain(features: FeatureMap, newest: int, fill: int, rule: MaskRule = MaskRule.CORRECTED) -> Chain:
    """The chain of the draft after position `newest`, with `fill` tokens in flight."""
    unfinished = chain_rows(rule, features.stages, fill) if features.first < features.last else ()
    rows = tuple(
        ChainRowAt(newest - row.depth, features.kind(row.depth), range(row.depth, row.last + 1), newest - row.last)
        for row in unfinished
    )
    return Chain(newest, rows, features.final_kind)


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


def draw_fill(rng: random.Random, stages: int, acceptance: float, since_origin: int) -> int:
    """Tokens in flight; no more than there are after the prompt (`since_origin`, the newest included)."""
    (fill,) = rng.choices(range(1, stages + 1), fill_weights(stages, acceptance))
    return min(fill, since_origin)


def draw_chains(
    rng: random.Random,
    features: FeatureMap,
    newest: range,
    *,
    share: float,
    acceptance: float,
    rule: MaskRule,
) -> list[Chain]:
    """Chains for about `share` of the positions `newest` of one example, whose first is the first after the prompt."""
    return [
        build_chain(features, position, draw_fill(rng, features.stages, acceptance, position - newest.start + 1), rule)
        for position in newest
        # The authors' rule reaches back further than the tokens in flight, so it needs that many tokens.
        if rng.random() < share and (rule is MaskRule.CORRECTED or position >= features.stages)
    ]
