"""Which reading of a head is meant, where its files leave several open: the one whose drafts the target agrees with.

A wrong reading is silent: drafts are still drafts, and only seldom right. So each is tried on text that comes with
Echelon, of which the target has said what it would have written behind every token. No claim is made beyond that:
where all readings fail alike, the declared one stays.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from speculation.heads.config import HeadConfig
from speculation.heads.layouts import Readings
from speculation.heads.network import EagleHead
from workers.model.attention import FrameContext, Rules
from workers.model.kv_cache import KVSlice

POOR = 0.3  # share of first drafts that are right, below which a head is not much use


class SeenText(NamedTuple):
    """Some text, and what the target thinks of it."""

    tokens: Sequence[int]
    states: Tensor  # [tokens, hidden states, H], of the indices that `anchors_of` names
    best: Tensor  # int64 [tokens], the likeliest token behind each, for the target


class RightDrafts(NamedTuple):
    """Shares of a head's drafts that are the target's likeliest token."""

    first: float  # of those made from a feature
    second: float  # of those made from the output for the token before

    @property
    def total(self) -> float:
        """What readings are compared by."""
        return self.first + self.second


def anchors_of(readings: Readings) -> tuple[int, ...]:
    """Hidden states that any of them reads, ascending."""
    return tuple(sorted({index for one in (readings.declared, *readings.others) for index in one.features}))


class Tried(NamedTuple):
    """A reading, and what it has come to."""

    reading: HeadConfig
    agreement: RightDrafts


def try_readings(head: EagleHead, readings: Readings, passages: Sequence[SeenText]) -> list[Tried]:
    """All readings, the best first, and before others that are no better the declared one.

    `head` may be of any reading, as all have the same weights.
    """
    anchors = anchors_of(readings)
    tried = [
        Tried(reading, agreement(head.meant(reading, anchors), passages))
        for reading in (readings.declared, *readings.others)
    ]
    return sorted(tried, key=lambda one: -one.agreement.total)  # equals keep their order


@torch.inference_mode()
def agreement(head: EagleHead, passages: Sequence[SeenText]) -> RightDrafts:
    """How often the head's first and second drafts are what the target would have written."""
    hits, counts = [0, 0], [0, 0]
    for passage in passages:
        length = len(passage.tokens)
        tokens = torch.tensor(passage.tokens, device=head.device)
        cache, tables = head.new_cache(length), head.rotary_tables(length)
        frame = FrameContext(cache.layers(0), 0, length - 1)
        outputs = head(tokens[1:], head.features(passage.states[:-1]), tables.at(0, length - 1), frame)
        behind = _SecondRows(cache, length - 2)
        again = head(tokens[2:], head.fed_back(outputs[:-1]), tables.at(1, length - 1), behind)
        for place, (rows, skipped) in enumerate(((outputs, 1), (again, 2))):
            drafted = head.draft_to_target[head.logits(rows).argmax(-1)]
            hits[place] += int((drafted == passage.best[skipped:].to(drafted.device)).sum())
            counts[place] += len(drafted)
    return RightDrafts(*(hit / max(count, 1) for hit, count in zip(hits, counts, strict=True)))


class _SecondRows:
    """Rows of second drafts, all at once: each sees the first rows up to the one that it follows, and itself."""

    states = None

    def __init__(self, cache: KVSlice, rows: int) -> None:
        self._past = cache.layers(0)
        self._rows = rows

    @property
    def positions(self) -> Tensor:
        """See `Rows`."""
        return torch.arange(1, self._rows + 1)[None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """See `Rows`."""
        keys, values = (held[:, :, : self._rows] for held in self._past[layer])
        _, heads, rows, _ = query.shape
        groups = heads // key.shape[1]
        past_keys, past_values, key, value = (
            part.repeat_interleave(groups, dim=1) for part in (keys, values, key, value)
        )
        later = torch.ones(rows, rows, dtype=torch.bool, device=query.device).triu(1)
        scores = (query @ past_keys.transpose(2, 3) * rules.scaling).masked_fill(later, -torch.inf)
        own = (query * key).sum(-1, keepdim=True) * rules.scaling
        weights = torch.cat([scores, own], dim=-1).softmax(-1, dtype=torch.float32).to(value.dtype)
        return weights[..., :-1] @ past_values + weights[..., -1:] * value
