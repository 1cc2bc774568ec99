"""The decoder layers of a draft module, taken from transformers, and their rotary embedding."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

from speculation.pdm.config import ModuleConfig
from speculation.pdm.target import WITH_OWN_LAYERS, skeleton, without_module
from workers.model import attention
from workers.model.rotary import RotaryTables
from workers.shared.errors import ConfigError
from workers.shared.model_files.facts import head_dim

_FULL = "full_attention"
_WIDER = 4  # how much wider the inside of a plain layer is than hidden states, where the target has experts only


def layer_kinds(target: PreTrainedConfig, layers: Sequence[int]) -> tuple[str, ...]:
    """How the target's `layers` attend, as its configuration names it; none where all attend to everything."""
    kinds: Sequence[str] = getattr(target, "layer_types", None) or [_FULL] * target.num_hidden_layers
    if not all(0 <= layer < target.num_hidden_layers for layer in layers):
        raise ConfigError(f"--init-layers {list(layers)}: the target has layers 0..{target.num_hidden_layers - 1}")
    named = tuple(kinds[layer] for layer in layers)
    return named if set(named) != {_FULL} else ()


class TowerRotary:
    """Rotations of the tower's rows. The frequencies stay float32 on the CPU: in 16 bits they would be a wrong phase.

    Layers that start as the target's keep the rotation of their kind, of which Gemma 3 has two.
    """

    def __init__(self, module: nn.Module, kinds: Sequence[str]) -> None:
        """`module` is the target family's rotary embedding; `kinds` has one a layer."""
        self.module = module
        self._kinds = kinds
        self._made: tuple[int, torch.dtype, torch.device, RotaryTables] | None = None

    def tables(self, length: int, dtype: torch.dtype, device: torch.device) -> RotaryTables:
        """Of positions 0..length - 1 at least. The last are kept: all sessions of a module have the same."""
        if self._made is None or self._made[0] < length or self._made[1:3] != (dtype, device):
            made = RotaryTables(self.module, self._kinds, max_len=length, dtype=dtype, device=device)
            self._made = (length, dtype, device, made)
        return self._made[3]


def build_tower(target: PreTrainedConfig, config: ModuleConfig) -> tuple[nn.ModuleList, TowerRotary]:
    """Untrained layers, float32, and their rotations.

    Raises `ConfigError` for a target that cannot be served, or has no draft module with layers of this kind.
    """
    attention.register()
    family = skeleton(target)
    own = target.model_type in WITH_OWN_LAYERS
    if not own and config.layer_type == "target":
        raise without_module(target, "its own layers make none, plain ones do (train with --layer-type qwen3)")
    # No layer looks through a window, as one of the target may: rows see the whole text, here and in training.
    kinds = config.layer_kinds or (_FULL,) * config.layers
    if config.layer_type == "qwen3":
        layer_class: Any = Qwen3DecoderLayer
        shape: PreTrainedConfig = Qwen3Config(
            hidden_size=target.hidden_size,
            intermediate_size=getattr(target, "intermediate_size", None) or _WIDER * target.hidden_size,
            num_attention_heads=target.num_attention_heads,
            num_key_value_heads=target.num_key_value_heads,
            head_dim=head_dim(target.to_dict()),
            hidden_act=getattr(target, "hidden_act", None) or target.hidden_activation,
            rms_norm_eps=target.rms_norm_eps,
            attention_bias=getattr(target, "attention_bias", False),
        )
    else:
        layer_class = type(family.layers[0])
        shape = copy.deepcopy(target)
    shape.num_hidden_layers = config.layers
    shape.layer_types = [_FULL] * config.layers
    shape.sliding_window = None
    shape._attn_implementation = attention.NAME
    # Plain layers rotate whole heads, which those of other targets may not.
    module = type(family.rotary_emb)(config=target) if own else Qwen3RotaryEmbedding(shape)  # type: ignore[arg-type]
    rotary = TowerRotary(module, kinds)
    return nn.ModuleList(layer_class(shape, index) for index in range(config.layers)), rotary
