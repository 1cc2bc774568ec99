"""Packs examples and chains into one list of rows, and attends within it without any padding or dense mask.

Rows are, first, the finished rows of every example in time order, all of one feature type, then the chains' rows
example by example. A finished row sees the finished rows up to itself; a chain row sees finished rows and at most as
many rows of its own chain as there are in flight. So the cost is the one of drafting each position once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from speculation.pdm.module import DraftModule
from speculation.training.examples.draws import Chain
from workers.model.attention import Rules


@dataclass(frozen=True)
class Segment:
    """What the chain rows of one example see."""

    unfinished_mask: Tensor  # bool [chain rows, finished rows]: not visible
    own: Tensor  # int64 [chain rows, longest chain], indices of chain rows
    own_mask: Tensor  # bool [chain rows, longest chain]: not visible


class PackedRows:
    """Layout and attention (`Rows`) of one training step."""

    states = None

    def __init__(self, chains: Sequence[Sequence[Chain]], offsets: Sequence[int], device: torch.device | str) -> None:
        """`chains` are those of each example, at least one; `offsets` is where each example's tokens start."""
        self._segments: list[Segment] = []
        finished_index: list[int] = []
        finished_position: list[int] = []
        finished_kinds: list[int] = []
        chain_index: list[int] = []
        chain_position: list[int] = []
        kinds: list[int] = []
        newest_row: list[int] = []
        newest_index: list[int] = []
        finished_total = sum(_finished(example) for example in chains)
        for example, offset in zip(chains, offsets, strict=True):
            first, finished = len(finished_index), _finished(example)
            finished_index.extend(range(offset, offset + finished))
            finished_position.extend(range(finished))
            finished_kinds.extend([example[0].final_kind] * finished)
            rows = [row for chain in example for row in chain.rows]
            width = max((len(row.own) for row in rows), default=1)
            own: list[list[int]] = []
            base = 0
            for chain in example:
                newest = finished_total + len(chain_index) + base if chain.rows else first + chain.newest
                newest_row.extend(range(newest, newest + chain.drafts))
                newest_index.extend(offset + chain.newest - back for back in range(chain.drafts))
                own.extend([base + place for place in row.own] + [-1] * (width - len(row.own)) for row in chain.rows)
                base += len(chain.rows)
            chain_index.extend(offset + row.position for row in rows)
            chain_position.extend(row.position for row in rows)
            kinds.extend(row.kind for row in rows)
            own_rows = torch.tensor(own, dtype=torch.int64, device=device).view(len(rows), width)
            seen = torch.tensor([row.finished for row in rows], dtype=torch.int64, device=device)
            self._segments.append(
                Segment(
                    torch.arange(finished, device=device) >= seen[:, None],
                    own_rows.clamp(min=0),
                    own_rows < 0,
                )
            )
        # Finished rows of each example, then chain rows of each example. Split, not sliced: the backward of a slice
        # fills a tensor of all rows.
        self._sizes = [
            *(_finished(example) for example in chains),
            *(sum(len(chain.rows) for chain in example) for example in chains),
        ]
        self._index = torch.tensor(finished_index + chain_index, device=device)
        self._kinds = finished_kinds + kinds
        self._positions = torch.tensor(finished_position + chain_position, device=device)
        self._length = max(finished_position + chain_position) + 1
        self._newest_row = torch.tensor(newest_row, device=device)
        self.newest = torch.tensor(newest_index, device=device)  # [drafts], indices of tokens
        self.rows = finished_total + len(chain_index)

    @property
    def positions(self) -> Tensor:
        """See `Rows`."""
        return self._positions[None]

    def forward(self, module: DraftModule, anchors: Tensor) -> Tensor:
        """Tower outputs `[drafts, H]` at the token before every draft; `anchors` is `[tokens, anchors, H]`."""
        rows = module.mixed_features(self._kinds, anchors[self._index])
        tables = module.rotary.tables(self._length, rows.dtype, rows.device)
        hidden = module.tower(rows, tables.rows(self._positions), self)
        return hidden[self._newest_row]

    def attend(self, _layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """See `Rows`; draft modules have neither windows nor anything else beside a scale."""
        scaling = rules.scaling
        # Under autocast the rotation leaves queries and keys in float32.
        queries = torch.split(query[0].to(value.dtype), self._sizes, dim=1)
        keys = torch.split(key[0].to(value.dtype), self._sizes, dim=1)
        values = torch.split(value[0], self._sizes, dim=1)
        examples = len(self._segments)
        finished = [
            scaled_dot_product_attention(
                queries[at][None], keys[at][None], values[at][None], is_causal=True, scale=scaling, enable_gqa=True
            )[0]
            for at in range(examples)
        ]
        unfinished = [
            attend_chains(
                segment,
                queries[examples + at] * scaling,
                (keys[at], values[at]),
                (keys[examples + at], values[examples + at]),
            )
            for at, segment in enumerate(self._segments)
        ]
        return torch.cat([*finished, *unfinished], dim=1)[None]


def _finished(chains: Sequence[Chain]) -> int:
    """How many finished rows anything in `chains` sees."""
    return max(chain.finished for chain in chains)


def attend_chains(at: Segment, query: Tensor, past: tuple[Tensor, Tensor], chain: tuple[Tensor, Tensor]) -> Tensor:
    """Attention of one example's chain rows over finished rows `past` and `chain` rows (keys, values)."""
    heads, rows, width = query.shape
    if not rows:
        return query
    kv_heads = past[0].shape[0]
    groups = heads // kv_heads
    grouped = query.reshape(kv_heads, groups * rows, width)
    past_scores = (grouped @ past[0].transpose(1, 2)).view(kv_heads, groups, rows, -1)
    by_row = grouped.view(kv_heads, groups, rows, width).transpose(1, 2)
    own_scores = (by_row @ chain[0][:, at.own].transpose(2, 3)).transpose(1, 2)
    scores = torch.cat(
        [past_scores.masked_fill(at.unfinished_mask, -torch.inf), own_scores.masked_fill(at.own_mask, -torch.inf)],
        dim=-1,
    )
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(past[1].dtype)
    past_weights, own_weights = torch.split(weights, [past_scores.shape[-1], own_scores.shape[-1]], dim=-1)
    mixed = (past_weights.reshape(kv_heads, groups * rows, -1) @ past[1]).view(kv_heads, groups, rows, width)
    mixed = mixed + (own_weights.transpose(1, 2) @ chain[1][:, at.own]).transpose(1, 2)
    return mixed.reshape(heads, rows, width)
