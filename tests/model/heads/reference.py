"""A head computed the slow way: from its tensors, without a cache, the whole text again for every draft."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from speculation.heads.config import HeadConfig


class Reference:
    """Drafts as the method is written down; `tensors` are those of the head, with embedding and LM head."""

    def __init__(self, config: HeadConfig, tensors: dict[str, Tensor], draft_ids: Sequence[int]) -> None:
        self.config = config
        self.tensors = {name: tensor.double() for name, tensor in tensors.items()}
        self.draft_ids = list(draft_ids)

    def chain(self, tokens: Sequence[int], states: Tensor, drafts: Sequence[int]) -> Tensor:
        """Logits of the draft behind `tokens` (all verified) and `drafts`.

        `states` `[len(tokens) - 1, features, H]` are the hidden states of all tokens but the last.
        """
        features = [self.fused(state) for state in states]
        following = [*tokens[1:], *drafts]
        for count in range(len(features), len(following)):
            output = self.outputs(features[:count], following[:count])[-1]
            features.append(self.norm("norm", output) if self.config.norm_output else output)
        return self.head(self.outputs(features, following)[-1])

    def parallel(self, tokens: Sequence[int], states: Tensor, masks: int) -> Tensor:
        """Logits of the draft that is `masks` places behind the first one."""
        assert self.config.mask_token_id is not None
        masked = self.fused(self.tensors["mask_hidden"].reshape(states.shape[1:]))
        features = [*(self.fused(state) for state in states), *[masked] * masks]
        following = [*tokens[1:], *[self.config.mask_token_id] * masks]
        return self.head(self.outputs(features, following)[-1])

    def fused(self, state: Tensor) -> Tensor:
        """Of hidden states [features, H], in the head's own order."""
        parts = [part.double() for part in state]
        if self.config.fc_norm:
            parts = [self.norm(f"fc_norm.{place}", part) for place, part in enumerate(parts)]
        joined = torch.cat(parts)
        if self.config.norm_before_fc:
            joined = self.norm("input_norm", joined)
        fused = self.tensors["fc.weight"] @ joined
        return fused + self.tensors["fc.bias"] if self.config.fc_bias else fused

    def outputs(self, features: Sequence[Tensor], following: Sequence[int]) -> list[Tensor]:
        """Of every row, all layers."""
        embedding = self.tensors["embed_tokens.weight"]
        hidden = list(features)
        for layer in range(self.config.layers):
            name = f"layers.{layer}"
            rows, residuals = [], []
            for place, row in enumerate(hidden):
                normed = self.norm(f"{name}.hidden_norm", row) if layer == 0 else row
                residuals.append(normed if layer == 0 and self.config.norm_before_residual else row)
                if layer == 0:
                    embedded = self.norm(f"{name}.input_layernorm", embedding[following[place]])
                    rows.append(torch.cat([embedded, normed]))
                else:
                    rows.append(self.norm(f"{name}.input_layernorm", row))
            mixed = self.attention(f"{name}.self_attn", rows)
            hidden = []
            for residual, added in zip(residuals, mixed, strict=True):
                middle = residual + added
                normed = self.norm(f"{name}.post_attention_layernorm", middle)
                gate, up, down = (self.tensors[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
                hidden.append(middle + down @ (silu(gate @ normed) * (up @ normed)))
        return hidden

    def attention(self, name: str, rows: Sequence[Tensor]) -> list[Tensor]:
        config = self.config
        groups = config.attention_heads // config.kv_heads
        queries, keys, values = [], [], []
        for place, row in enumerate(rows):
            query, key, value = (self.linear(f"{name}.{part}_proj", row).view(-1, config.head_dim) for part in "qkv")
            if config.layer_type == "qwen3":
                query, key = self.norm(f"{name}.q_norm", query), self.norm(f"{name}.k_norm", key)
            queries.append(self.rotated(query, place))
            keys.append(self.rotated(key, place))
            values.append(value)
        found = []
        for place, query in enumerate(queries):
            seen = torch.stack(keys[: place + 1]).repeat_interleave(groups, dim=1)
            read = torch.stack(values[: place + 1]).repeat_interleave(groups, dim=1)
            weights = (torch.einsum("hd,thd->ht", query, seen) * config.head_dim**-0.5).softmax(-1)
            found.append(self.linear(f"{name}.o_proj", torch.einsum("ht,thd->hd", weights, read).flatten()))
        return found

    def rotated(self, heads: Tensor, position: int) -> Tensor:
        config = self.config
        if config.rope["rope_type"] == "default":
            frequencies = config.rope["rope_theta"] ** -(torch.arange(0, config.head_dim, 2).double() / config.head_dim)
        else:
            shape = LlamaConfig(rope_parameters=dict(config.rope), head_dim=config.head_dim)
            frequencies = ROPE_INIT_FUNCTIONS[config.rope["rope_type"]](shape)[0].double()
        angles = position * frequencies
        first, second = heads.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def linear(self, name: str, row: Tensor) -> Tensor:
        product = self.tensors[f"{name}.weight"] @ row
        bias = self.tensors.get(f"{name}.bias")
        return product if bias is None else product + bias

    def norm(self, name: str, row: Tensor) -> Tensor:
        weight = self.tensors[f"{name}.weight"]
        return rms_norm(row, weight.shape, weight, self.config.rms_norm_eps)

    def head(self, output: Tensor) -> Tensor:
        return self.tensors["lm_head.weight"] @ self.norm("norm", output)
