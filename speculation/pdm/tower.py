"""The decoder layers of a draft module, taken from transformers, and its rotary embedding."""

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer, MistralRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

from speculation.pdm.attention import ATTENTION_NAME, register_attention
from speculation.pdm.config import LayerType
from workers.shared.errors import ConfigError
from workers.shared.model_files.facts import head_dim


def _classes(model_type: str) -> tuple[Any, Any]:
    """Decoder layer and rotary embedding of a target family."""
    known = {
        "llama": (LlamaDecoderLayer, LlamaRotaryEmbedding),
        "mistral": (MistralDecoderLayer, MistralRotaryEmbedding),
        "qwen2": (Qwen2DecoderLayer, Qwen2RotaryEmbedding),
        "qwen3": (Qwen3DecoderLayer, Qwen3RotaryEmbedding),
    }
    if model_type not in known:
        raise ConfigError(
            f"no draft module for model type {model_type!r}: supported are {', '.join(sorted(known))}; "
            "use the ngram drafter"
        )
    return known[model_type]


def tower_config(target: PreTrainedConfig, layers: int, layer_type: LayerType) -> PreTrainedConfig:
    """A configuration for `layers` layers of full attention with the target's dimensions."""
    if layer_type == "target":
        config = copy.deepcopy(target)
    else:
        config = Qwen3Config(
            hidden_size=target.hidden_size,
            intermediate_size=target.intermediate_size,
            num_attention_heads=target.num_attention_heads,
            num_key_value_heads=target.num_key_value_heads,
            head_dim=head_dim(target.to_dict()),
            hidden_act=target.hidden_act,
            rms_norm_eps=target.rms_norm_eps,
            attention_bias=getattr(target, "attention_bias", False),
        )
    config.num_hidden_layers = layers
    config.layer_types = ["full_attention"] * layers
    config.sliding_window = None
    config._attn_implementation = ATTENTION_NAME
    return config


def build_tower(target: PreTrainedConfig, layers: int, layer_type: LayerType) -> tuple[nn.ModuleList, nn.Module]:
    """Untrained layers and the target family's rotary embedding, both float32.

    Raises `ConfigError` for a target family without a draft module.
    """
    layer_class, rotary_class = _classes(target.model_type)
    if layer_type == "qwen3":
        layer_class = Qwen3DecoderLayer
    register_attention()
    config = tower_config(target, layers, layer_type)
    return nn.ModuleList(layer_class(config, index) for index in range(layers)), rotary_class(config=target)
