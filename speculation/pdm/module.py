"""The Pipeline Draft Module (arXiv 2605.30852): projections of anchors, a small tower, a draft head."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers import PreTrainedConfig

from speculation.pdm.attention import RowAttention
from speculation.pdm.cache import DraftCache
from speculation.pdm.config import ModuleConfig
from speculation.pdm.tower import build_tower
from workers.shared.model_files.facts import head_dim


@torch.no_grad()
def take_layer(layer: nn.Module, read: Callable[[str], Tensor], source: int) -> None:
    """Copies the target's decoder layer `source` into `layer`; `read` gives the target's tensors by name."""
    for name, parameter in layer.named_parameters():
        parameter.copy_(read(f"model.layers.{source}.{name}"))


class DraftModule(nn.Module):
    """Reads rows of anchors, each with a feature type, and predicts the token after the last one.

    The state dict holds `aggr_projs.{i}.weight [H, (i+1)H]`, `spec_layers.*` and `lm_head.weight [draft vocab, H]`;
    `trained_state` is what a checkpoint keeps of it. The target's final norm is a frozen buffer outside of both.
    """

    final_norm: Tensor
    draft_to_target: Tensor

    def __init__(self, config: ModuleConfig, target: PreTrainedConfig, final_norm: Tensor) -> None:
        """`target` is the target's text configuration and `final_norm` its norm weight, `[H]`."""
        super().__init__()
        hidden = config.hidden_size
        self.config = config
        self.eps: float = target.rms_norm_eps
        self.kv_heads: int = target.num_key_value_heads
        self.head_dim = head_dim(target.to_dict())
        self.aggr_projs = nn.ModuleList(
            nn.Linear((kind + 1) * hidden, hidden, bias=False) for kind in range(len(config.anchors))
        )
        self.spec_layers, self.rotary = build_tower(target, config.layers, config.layer_type)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.lm_head.requires_grad_(config.head == "own")
        self.frozen_layers.requires_grad_(False)
        self.register_buffer("final_norm", final_norm.detach().clone(), persistent=False)
        ids = config.draft_token_ids
        targets = torch.arange(config.vocab_size) if ids is None else torch.tensor(ids)
        self.register_buffer("draft_to_target", targets, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "DraftModule":
        # A rotary frequency in 16 bits is off by up to 0.4 %: a wrong phase after a few hundred positions.
        frequencies = {name: buffer.clone() for name, buffer in self.rotary.named_buffers()}
        super()._apply(fn, recurse)
        for name, buffer in self.rotary.named_buffers():
            self.rotary.register_buffer(name, frequencies[name].to(buffer.device), persistent=False)
        return self

    @property
    def frozen_layers(self) -> nn.ModuleList:
        """The tower layers that are the target's."""
        return self.spec_layers[self.config.own_layers :]

    def trained_state(self) -> dict[str, Tensor]:
        """The state dict without what is the target's."""
        borrowed = [f"spec_layers.{index}." for index in range(self.config.own_layers, self.config.layers)]
        if self.config.head == "target":
            borrowed.append("lm_head.")
        state: dict[str, Tensor] = self.state_dict()
        return {name: state[name] for name in state if not name.startswith(tuple(borrowed))}

    @torch.no_grad()
    def borrow(self, read: Callable[[str], Tensor], head: Tensor) -> None:
        """Takes what is the target's from the target: `read` gives its tensors by name, `head` is its LM head."""
        if self.config.head == "target":
            self.take_head(head)
        for layer, source in zip(self.frozen_layers, self.config.frozen_layers, strict=True):
            take_layer(layer, read, source)

    @torch.no_grad()
    def take_head(self, head: Tensor) -> None:
        """Copies the rows of the draft vocabulary from the target's LM head `[V, H]`."""
        self.lm_head.weight.copy_(head[self.draft_to_target])

    def new_cache(self, capacity: int) -> DraftCache:
        """An empty cache for one sequence of up to `capacity` tokens, of the module's dtype and device."""
        return DraftCache(
            self.config.layers,
            self.kv_heads,
            capacity,
            self.head_dim,
            dtype=self.final_norm.dtype,
            device=self.final_norm.device,
        )

    def features(self, kind: int, anchors: Tensor) -> Tensor:
        """Rows `[rows, H]` of feature type `kind`, from `anchors` `[rows, at least kind + 1, H]`.

        Anchors beyond `kind` are never read, so they may hold anything.
        """
        projected: Tensor = self.aggr_projs[kind](anchors[:, : kind + 1].flatten(1))
        return projected

    def mixed_features(self, kinds: Sequence[int], anchors: Tensor) -> Tensor:
        """Rows `[rows, H]` where row i has feature type `kinds[i]`; `anchors` is `[rows, anchors, H]`."""
        rows_of: dict[int, list[int]] = {}
        for row, kind in enumerate(kinds):
            rows_of.setdefault(kind, []).append(row)
        order = torch.tensor([row for rows in rows_of.values() for row in rows], device=anchors.device)
        grouped = torch.cat([self.features(kind, anchors[rows]) for kind, rows in rows_of.items()])
        return grouped[order.argsort()]

    def tower(self, rows: Tensor, positions: Tensor, attention: RowAttention) -> Tensor:
        """Runs all layers over `rows` `[rows, H]` at absolute `positions` `[rows]`; returns the same shape."""
        hidden = rows[None]
        rotation: Any = self.rotary(hidden, positions[None])
        for layer in self.spec_layers:
            hidden = layer(hidden, position_embeddings=rotation, rows=attention)
        return hidden[0]

    def logits(self, rows: Tensor) -> Tensor:
        """Draft logits, float32 `[rows, draft vocabulary]`, of tower outputs `[rows, H]`."""
        normed = rms_norm(rows.float(), (rows.shape[-1],), self.final_norm.float(), self.eps)
        scores: Tensor = self.lm_head(normed.to(rows.dtype))
        return scores.float()
