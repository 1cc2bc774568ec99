"""The Pipeline Draft Module (arXiv 2605.30852): projections of anchors, a small tower, a draft head."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers import PreTrainedConfig

from speculation.pdm.config import ModuleConfig
from speculation.pdm.lean import LeanLayer, is_known
from speculation.pdm.tower import build_tower
from workers.model.attention import Rows
from workers.model.decoder_layer import DecoderLayer
from workers.model.kv_cache import KVSlice
from workers.model.rotary import CosSin, RotaryTables
from workers.shared.model_files.facts import head_dim
from workers.shared.model_files.layers import KVShape


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
        """`target` is the target's text configuration, `final_norm` what its norm multiplies by, `[H]`."""
        super().__init__()
        hidden = config.hidden_size
        self.config = config
        self.eps: float = target.rms_norm_eps
        self.kv_heads: int = target.num_key_value_heads
        self.head_dim = head_dim(target.to_dict())
        self.aggr_projs = nn.ModuleList(
            nn.Linear((kind + 1) * hidden, hidden, bias=False) for kind in range(len(config.anchors))
        )
        self.softcap: float | None = getattr(target, "final_logit_softcapping", None)
        self.spec_layers, self.rotary = build_tower(target, config)
        self._calls: list[DecoderLayer | LeanLayer] = [DecoderLayer(layer) for layer in self.spec_layers]
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.lm_head.requires_grad_(config.head == "own")
        self.frozen_layers.requires_grad_(False)
        self.register_buffer("final_norm", final_norm.detach().clone(), persistent=False)
        ids = config.draft_token_ids
        targets = torch.arange(config.vocab_size) if ids is None else torch.tensor(ids)
        self.register_buffer("draft_to_target", targets, persistent=False)

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

    def streamline(self) -> None:
        """Makes layers of a known kind cheaper to call. The module can then only draft, and stays where it is."""
        for index, layer in enumerate(self.spec_layers):
            if is_known(layer):
                self.spec_layers[index] = self._calls[index] = LeanLayer(layer)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and rows."""
        return self.final_norm.dtype

    @property
    def device(self) -> torch.device:
        """Of weights and rows."""
        return self.final_norm.device

    def new_cache(self, capacity: int, scratch: int = 0) -> KVSlice:
        """Keys and values of one sequence of up to `capacity` tokens, behind rows of `scratch`."""
        shape = KVShape(self.kv_heads, self.head_dim, self.head_dim)
        return KVSlice(
            dict.fromkeys(range(self.config.layers), shape),
            sequences=1,
            max_len=capacity,
            dtype=self.dtype,
            device=self.device,
            scratch=scratch,
        )

    def rotary_tables(self, length: int) -> RotaryTables:
        """Rotations of positions 0..length - 1 at least, for all layers."""
        return self.rotary.tables(length, self.dtype, self.device)

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

    def tower(self, rows: Tensor, rotary: Sequence[CosSin], seen: Rows) -> Tensor:
        """Runs all layers over `rows` `[rows, H]`, rotated by `rotary`, one a layer; returns the same shape."""
        hidden = rows[None]
        for layer, rotation in zip(self._calls, rotary, strict=True):
            hidden = layer(hidden, rotation, seen)
        return hidden[0]

    def logits(self, rows: Tensor) -> Tensor:
        """Draft logits, float32 `[rows, draft vocabulary]`, of tower outputs `[rows, H]`."""
        normed = rms_norm(rows.float(), (rows.shape[-1],), self.final_norm.float(), self.eps)
        scores: Tensor = self.lm_head(normed.to(rows.dtype))
        return capped(scores.float(), self.softcap)


def capped(logits: Tensor, cap: float | None) -> Tensor:
    """Logits as a target with `final_logit_softcapping` has them."""
    return logits if cap is None else torch.tanh(logits / cap) * cap
