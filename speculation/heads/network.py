"""EAGLE-3 and P-EAGLE heads: hidden states of the target, a layer of double width, a draft vocabulary.

What all heads have in common, whatever they are made of, is `FeatureHead`.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3DecoderLayer

from speculation.heads.config import HeadConfig
from speculation.pdm.tower import TowerRotary
from workers.model import attention
from workers.model.attention import CONTEXT, Rows
from workers.model.decoder_layer import DecoderLayer
from workers.model.kv_cache import KVSlice
from workers.model.rotary import CosSin, RotaryTables
from workers.shared.model_files.layers import KVShape


class FeatureHead(nn.Module, ABC):
    """Drafts from pairs: the feature of a token, made of the target's hidden states, and the token after it.

    The output for the pair (feature of position j, token at j + 1) predicts the token at j + 2. A pair whose feature is
    not known yet takes the output for the pair before it, `fed_back`, in its place.
    """

    anchors: tuple[int, ...]  # hidden states of the target that features are made of, ascending
    draft_to_target: Tensor  # [draft vocabulary], target ids
    kv_shape: KVShape
    layer_count: int
    width: int  # of features and outputs
    target_width: int  # of hidden states

    @abstractmethod
    def features(self, states: Tensor) -> Tensor:
        """Features `[rows, width]` of hidden states `[rows, anchors, target_width]`, in the order of `anchors`."""

    @abstractmethod
    def forward(self, tokens: Tensor, features: Tensor, rotary: Sequence[CosSin], rows: Rows) -> Tensor:
        """Outputs `[rows, width]` for the pairs of `features` `[rows, width]` and the `tokens` `[rows]` after them.

        `rotary` is one pair of tables a layer, of the rows' positions; `rows` says what each row sees.
        """

    @abstractmethod
    def logits(self, outputs: Tensor) -> Tensor:
        """Float32 `[rows, draft vocabulary]` of outputs `[rows, width]`."""

    @abstractmethod
    def fed_back(self, outputs: Tensor) -> Tensor:
        """What stands for the feature of the next position, of outputs `[rows, width]`; the same shape."""

    @abstractmethod
    def rotary_tables(self, length: int) -> RotaryTables:
        """Rotations of positions 0..length - 1, for all layers."""

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, features and outputs."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Of weights, features and outputs."""
        return next(self.parameters()).device

    def new_cache(self, capacity: int, scratch: int = 0) -> KVSlice:
        """Keys and values of one sequence of up to `capacity` rows; the index is the feature's position.

        There are `scratch` rows more, for drafts that share their position with another.
        """
        shapes = dict.fromkeys(range(self.layer_count), self.kv_shape)
        return KVSlice(shapes, sequences=1, max_len=capacity, dtype=self.dtype, device=self.device, scratch=scratch)


class PairLayer(nn.Module):
    """The first layer: it attends to embedding and feature side by side, and adds to the feature."""

    def __init__(self, shape: Any, config: HeadConfig) -> None:
        super().__init__()
        hidden, eps, bias = config.hidden_size, config.rms_norm_eps, config.attention_bias
        kind: Any = Qwen3Attention if config.layer_type == "qwen3" else LlamaAttention
        self.self_attn = kind(shape, 0)
        for name, heads in (
            ("q_proj", config.attention_heads),
            ("k_proj", config.kv_heads),
            ("v_proj", config.kv_heads),
        ):
            setattr(self.self_attn, name, nn.Linear(2 * hidden, heads * config.head_dim, bias=bias))
        mlp: Any = LlamaMLP
        self.mlp = mlp(shape)
        self.hidden_norm = LlamaRMSNorm(hidden, eps=eps)
        self.input_layernorm = LlamaRMSNorm(hidden, eps=eps)
        self.post_attention_layernorm = LlamaRMSNorm(hidden, eps=eps)

    def forward(self, embedded: Tensor, features: Tensor, rotary: CosSin, rows: Rows, *, to_normed: bool) -> Tensor:
        """`[1, rows, H]` of embeddings and features `[1, rows, H]`; `to_normed`: it adds to the normalised feature."""
        normed = self.hidden_norm(features)
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        mixed, _ = self.self_attn(both, position_embeddings=rotary, attention_mask=None, **{CONTEXT: rows})
        hidden = (normed if to_normed else features) + mixed
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class EagleHead(FeatureHead):
    """An EAGLE-3 head (arXiv 2503.01840), its 3.1, or a P-EAGLE head (arXiv 2602.01469), as its configuration says.

    The state dict has the names of vLLM's files: `fc`, `layers.{i}`, `norm`, `lm_head`, `embed_tokens`, and where
    flagged `input_norm`, `fc_norm.{i}`, `mask_hidden`. `file_state` is what a checkpoint holds of it.
    """

    draft_to_target: Tensor

    def __init__(self, config: HeadConfig, draft_ids: Sequence[int] | None = None) -> None:
        """Untrained, float32. `draft_ids` are the target ids of the draft vocabulary, ascending; None: all of them."""
        super().__init__()
        attention.register()
        shape = _shape(config)
        hidden, count = config.hidden_size, len(config.features)
        self.config = config
        self.anchors = tuple(sorted(config.features))
        self.kv_shape = KVShape(config.kv_heads, config.head_dim, config.head_dim)
        self.layer_count, self.width, self.target_width = config.layers, hidden, config.target_hidden_size
        self._order = [self.anchors.index(index) for index in config.features]
        wide = count * config.target_hidden_size

        def norm(width: int) -> nn.Module:
            return LlamaRMSNorm(width, eps=config.rms_norm_eps)

        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.embed_tokens.requires_grad_(config.own_embedding)
        self.input_norm = norm(wide) if config.norm_before_fc else None
        norms = (norm(config.target_hidden_size) for _ in config.features)
        self.fc_norm = nn.ModuleList(norms) if config.fc_norm else None
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, wide)) if config.parallel else None
        self.fc = nn.Linear(wide, hidden, bias=config.fc_bias)
        plain: Any = Qwen3DecoderLayer if config.layer_type == "qwen3" else LlamaDecoderLayer
        others = [plain(shape, index) for index in range(1, config.layers)]
        self.layers = nn.ModuleList([PairLayer(shape, config), *others])
        self._others = [DecoderLayer(layer) for layer in others]
        self.norm = norm(hidden)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.lm_head.requires_grad_(config.own_head)
        self._rotary = TowerRotary(LlamaRotaryEmbedding(shape), [""] * config.layers)
        ids = torch.arange(config.vocab_size) if draft_ids is None else torch.tensor(draft_ids)
        self.register_buffer("draft_to_target", ids, persistent=False)

    def file_state(self) -> dict[str, Tensor]:
        """The state dict without what is the target's, and without the maps of the draft vocabulary."""
        borrowed = {"embed_tokens.weight"} if not self.config.own_embedding else set()
        borrowed |= {"lm_head.weight"} if not self.config.own_head else set()
        state: dict[str, Tensor] = self.state_dict()
        return {name: state[name] for name in state if name not in borrowed}

    def meant(self, config: HeadConfig, anchors: Sequence[int]) -> "EagleHead":
        """The same weights in the words of `config`, whose shapes are the same, read from hidden states `anchors`."""
        other = copy.copy(self)
        other.config = config
        other.anchors = tuple(anchors)
        other._order = [other.anchors.index(index) for index in config.features]
        return other

    @torch.no_grad()
    def borrow(self, embedding: Callable[[], Tensor], head: Callable[[], Tensor]) -> None:
        """Takes what is the target's from the target, by what reads its embedding `[V, H]` and LM head `[V, H]`."""
        if not self.config.own_embedding:
            self.embed_tokens.weight.copy_(embedding())
        if not self.config.own_head:
            self.lm_head.weight.copy_(head()[self.draft_to_target])

    def features(self, states: Tensor) -> Tensor:
        """See `FeatureHead`."""
        return self.fused(states[:, self._order].flatten(1))

    def fused(self, concatenated: Tensor) -> Tensor:
        """Features `[..., H]` of hidden states in the head's own order, `[..., features * target_width]`."""
        if self.input_norm is not None:
            concatenated = self.input_norm(concatenated)
        if self.fc_norm is not None:
            parts = torch.split(concatenated, self.target_width, dim=-1)
            concatenated = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(concatenated)
        return fused

    def masked_feature(self) -> Tensor:
        """The feature `[1, H]` of every position that a parallel head drafts beyond the first."""
        assert self.mask_hidden is not None
        return self.fused(self.mask_hidden[0])

    def forward(self, tokens: Tensor, features: Tensor, rotary: Sequence[CosSin], rows: Rows) -> Tensor:
        """See `FeatureHead`."""
        embedded, to_normed = self.embed_tokens(tokens)[None], self.config.norm_before_residual
        hidden = self.layers[0](embedded, features[None], rotary[0], rows, to_normed=to_normed)
        for layer, rotation in zip(self._others, rotary[1:], strict=True):
            hidden = layer(hidden, rotation, rows)
        output: Tensor = hidden[0]
        return output

    def logits(self, outputs: Tensor) -> Tensor:
        """See `FeatureHead`."""
        scores: Tensor = self.lm_head(self.norm(outputs))
        return scores.float()

    def fed_back(self, outputs: Tensor) -> Tensor:
        """See `FeatureHead`."""
        fed: Tensor = self.norm(outputs) if self.config.norm_output else outputs
        return fed

    def rotary_tables(self, length: int) -> RotaryTables:
        """See `FeatureHead`."""
        return self._rotary.tables(length, self.dtype, self.device)


def _shape(config: HeadConfig) -> Any:
    """What transformers' parts are made by."""
    kind: Any = Qwen3Config if config.layer_type == "qwen3" else LlamaConfig
    shape = kind(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.attention_heads,
        num_key_value_heads=config.kv_heads,
        num_hidden_layers=config.layers,
        head_dim=config.head_dim,
        hidden_act=config.hidden_act,
        rms_norm_eps=config.rms_norm_eps,
        attention_bias=config.attention_bias,
        rope_parameters=dict(config.rope),
        max_position_embeddings=config.max_position_embeddings,
    )
    shape._attn_implementation = attention.NAME
    shape.mlp_bias = False
    return shape
