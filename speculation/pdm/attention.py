"""Attention of the draft module's layers, called through transformers' attention interface.

What a row may see differs between drafting and training, so the caller hands each layer an object that attends.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from speculation.pdm.cache import DraftCache

ATTENTION_NAME = "echelon_draft_rows"


class RowAttention(Protocol):
    """Attends for all rows of one call in one layer."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Takes `[heads, rows, head_dim]` and keys and values `[kv_heads, rows, head_dim]`; returns the query's shape.

        `query` and `key` are rotated already.
        """
        ...


class CachedRows:
    """Consecutive rows from position `start`; causal attention over the cached rows before them and themselves."""

    def __init__(self, cache: DraftCache, start: int, rows: int) -> None:
        self._cache = cache
        self._start = start
        self._mask: Tensor | None = None
        if rows > 1:
            device = cache.keys.device
            queries = torch.arange(start, start + rows, device=device)
            self._mask = torch.arange(start + rows, device=device) <= queries[:, None]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See `RowAttention`."""
        keys, values = self._cache.write(layer, self._start, key, value)
        return scaled_dot_product_attention(
            query[None], keys[None], values[None], attn_mask=self._mask, scale=scaling, enable_gqa=True
        )[0]


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    rows: RowAttention,
    **_: Any,
) -> tuple[Tensor, None]:
    layer: int = module.layer_idx  # type: ignore[assignment]
    return rows(layer, query[0], key[0], value[0], scaling).transpose(0, 1)[None], None


def register_attention() -> None:
    """Makes `ATTENTION_NAME` known to transformers; calling it again changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, _attend)
