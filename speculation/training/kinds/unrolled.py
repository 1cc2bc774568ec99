"""What rows see while a head drafts several tokens one behind the other, without any padding or dense mask.

First come rows with true features, one a position, which see each other causally. Then, step by step, each chain gets
one row more: it sees the true rows up to the chain's base, and the chain's own rows. That is what a round computes:
rows with a feature of their own are those of verified tokens, and the others follow the newest of these.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from speculation.training.examples.layout import Segment, attend_chains
from workers.model.attention import Rules


class Unrolled:
    """Rows (`Rows`) of some examples, one behind the other: the true ones first, then those of each step."""

    states = None

    def __init__(self, lengths: Sequence[int], device: torch.device | str) -> None:
        """Examples with so many true rows each."""
        self._lengths = list(lengths)
        self._device = device
        self._starts = [0, *accumulate(self._lengths)][:-1]
        self._true: dict[int, tuple[Tensor, Tensor]] = {}  # keys and values by layer
        self._further: dict[int, list[tuple[Tensor, Tensor]]] = {}  # of each step
        self._rows = 0  # of all steps so far
        self._segments: list[Segment] = []
        self._counts: list[int] = []
        self._positions = torch.cat([torch.arange(length, device=device) for length in self._lengths])

    @property
    def positions(self) -> Tensor:
        """See `Rows`."""
        return self._positions[None]

    def step(self, bases: Sequence[Tensor], own: Tensor) -> Tensor:
        """A row more for each chain: `bases` `[chains]` are their bases' positions, by example, and `own`
        `[all chains, steps so far]` says which rows of earlier steps are theirs. Returns `own` for the next step.
        """
        chains = sum(map(len, bases))
        mine = torch.arange(self._rows, self._rows + chains, device=self._device)
        own = torch.cat([own, mine[:, None]], dim=1)
        self._rows += chains
        self._counts = [len(of) for of in bases]
        seen = torch.split(own, self._counts)
        self._segments = [
            Segment(
                torch.arange(length, device=self._device) > of[:, None], mine, torch.zeros_like(mine, dtype=torch.bool)
            )
            for length, of, mine in zip(self._lengths, bases, seen, strict=True)
        ]
        self._positions = torch.cat(list(bases)) + own.shape[1]
        return own

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """See `Rows`; heads have neither windows nor anything else beside a scale."""
        queries, keys, values = query[0].to(value.dtype), key[0].to(value.dtype), value[0]
        if not self._segments:
            self._true[layer] = keys, values
            parts = [
                scaled_dot_product_attention(
                    q[None], k[None], v[None], is_causal=True, scale=rules.scaling, enable_gqa=True
                )[0]
                for q, k, v in zip(
                    *(torch.split(of, self._lengths, dim=1) for of in (queries, keys, values)), strict=True
                )
            ]
            return torch.cat(parts, dim=1)[None]
        further = self._further.setdefault(layer, [])
        further.append((keys, values))
        chain = torch.cat([k for k, _ in further], dim=1), torch.cat([v for _, v in further], dim=1)
        true = zip(*(torch.split(of, self._lengths, dim=1) for of in self._true[layer]), strict=True)
        parts = [
            attend_chains(segment, q * rules.scaling, past, chain)
            for segment, q, past in zip(self._segments, torch.split(queries, self._counts, dim=1), true, strict=True)
        ]
        return torch.cat(parts, dim=1)[None]
