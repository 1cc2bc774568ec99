"""A draft module's layers for drafting: what a transformers layer computes, in half as many operations.

A draft has a row or three, so that most operations cost what it takes to begin them: on a CPU half of a draft was that,
on a GPU more. Products of the same rows are one product here, and a norm is one operation.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from workers.model.attention import Rows, Rules
from workers.model.rotary import CosSin

_PLAIN = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
_FOUR_NORMS = _PLAIN | {"pre_feedforward_layernorm", "post_feedforward_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


@dataclass(frozen=True)
class _Norm:
    """What a transformers RMS norm computes."""

    weight: Tensor
    eps: float

    @classmethod
    def of(cls, norm: Any, *, from_one: bool) -> "_Norm":
        """`from_one`: its weight is what is added to one."""
        weight = norm.weight.detach()
        eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
        return cls(weight + 1 if from_one else weight, eps)

    def __call__(self, rows: Tensor) -> Tensor:
        return rms_norm(rows, self.weight.shape, self.weight, self.eps)


def _joined(*linears: nn.Linear) -> nn.Linear:
    """One layer with the outputs of all, one behind the other."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    joined = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(biases), device="meta")
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        joined.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return joined


class LeanLayer(nn.Module):
    """A decoder layer of the Llama, Qwen, Mistral or Gemma 3 kind."""

    def __init__(self, layer: Any) -> None:
        """`layer` is one of transformers' for which `is_known` holds, on its device and of its dtype by now."""
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        four = hasattr(layer, "pre_feedforward_layernorm")
        self._index: int = attention.layer_idx
        self._head_dim: int = attention.head_dim
        self._rules = Rules(attention.scaling)
        q, k, v = (getattr(attention, f"{name}_proj") for name in "qkv")
        self._heads, self._kv_heads = (linear.out_features // self._head_dim for linear in (q, k))

        def norm(part: Any, name: str) -> _Norm:
            return _Norm.of(getattr(part, name), from_one=four)

        self._before_attention = norm(layer, "input_layernorm")
        self._before_mlp = norm(layer, "pre_feedforward_layernorm" if four else "post_attention_layernorm")
        self._after_attention = norm(layer, "post_attention_layernorm") if four else None
        self._after_mlp = norm(layer, "post_feedforward_layernorm") if four else None
        self._head_norms = (
            (norm(attention, "q_norm"), norm(attention, "k_norm")) if hasattr(attention, "q_norm") else None
        )
        self._act: nn.Module = mlp.act_fn
        self.qkv = _joined(q, k, v)
        self.out = _joined(attention.o_proj)
        self.gate_up = _joined(mlp.gate_proj, mlp.up_proj)
        self.down = _joined(mlp.down_proj)

    def forward(self, hidden: Tensor, rotation: CosSin, seen: Rows) -> Tensor:
        """The layer's output, `[1, T, H]`, like `hidden`; `rotation` is cosines and sines, `[1, T, head_dim]` each."""
        joined = self.qkv(self._before_attention(hidden)).unflatten(-1, (-1, self._head_dim))
        query, key, value = joined.split([self._heads, self._kv_heads, self._kv_heads], dim=2)
        if self._head_norms is not None:
            query, key = (norm(rows) for norm, rows in zip(self._head_norms, (query, key), strict=True))
            rotated = _rotated(torch.cat([query, key], dim=2), rotation)
        else:
            rotated = _rotated(joined[:, :, : self._heads + self._kv_heads], rotation)
        query, key = rotated.transpose(1, 2).split([self._heads, self._kv_heads], dim=1)
        attended = seen.attend(self._index, query, key, value.transpose(1, 2), self._rules)
        output = self.out(attended.transpose(1, 2).flatten(2))
        hidden = hidden + (output if self._after_attention is None else self._after_attention(output))
        gate, up = self.gate_up(self._before_mlp(hidden)).chunk(2, dim=-1)
        output = self.down(self._act(gate).mul_(up))
        return hidden + (output if self._after_mlp is None else self._after_mlp(output))


def _rotated(rows: Tensor, rotation: CosSin) -> Tensor:
    """`rows` `[1, T, heads, head_dim]`, whose two halves are the coordinates of what is rotated."""
    cosines, sines = (table[:, :, None] for table in rotation)
    half = rows.shape[-1] // 2
    rotated = rows * cosines
    rotated[..., :half].addcmul_(rows[..., half:], sines[..., :half], value=-1)
    rotated[..., half:].addcmul_(rows[..., :half], sines[..., half:])
    return rotated


def is_known(layer: nn.Module) -> bool:
    """Whether `layer` is put together as the ones that `LeanLayer` knows."""
    attention, mlp = (_children(getattr(layer, name, None)) for name in ("self_attn", "mlp"))
    heads_known = attention in (_ATTENTION, _ATTENTION | _HEAD_NORMS)
    return _children(layer) in (_PLAIN, _FOUR_NORMS) and heads_known and mlp == _MLP


def _children(module: nn.Module | None) -> set[str]:
    return set() if module is None else {name for name, _ in module.named_children()}
