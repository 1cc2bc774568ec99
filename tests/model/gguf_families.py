"""GGUF files of made-up models of several families, named and laid out as llama.cpp's converter does it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, dequantize, quantize
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_FACTORS = {"long": [2.0 + i for i in range(6)], "short": [1.0 + 0.1 * i for i in range(6)]}


class Made(NamedTuple):
    """A family: its configuration, and what its files say."""

    model_type: str
    config: dict[str, Any]
    architecture: str
    keys: dict[str, Any]
    parts: Mapping[str, str] = {}
    offset: bool = False  # whether norms are stored with 1 added
    reordered: bool = False  # whether numbers that are rotated together are stored side by side
    factors: Mapping[str, list[float]] = {}

    @property
    def experts(self) -> bool:
        """Whether the file has experts, in packed blocks."""
        return "expert_count" in self.keys


MADE = {
    "gemma": Made("gemma", {"head_dim": 16}, "gemma", {"attention.key_length": 16}, offset=True),
    "gemma2": Made(
        "gemma2",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 9.0,
        },
        "gemma2",
        {
            "attention.key_length": 16,
            "attention.sliding_window": 8,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 9.0,
        },
        parts=_GEMMA,
        offset=True,
    ),
    "granite": Made(
        "granite",
        {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
            "tie_word_embeddings": False,
        },
        "granite",
        {"attention.scale": 0.2, "embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 2.0},
        reordered=True,
    ),
    "mixtral": Made(
        "mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 2},
        "llama",
        {"expert_count": 5, "expert_used_count": 2},
        reordered=True,
    ),
    "olmo2": Made(
        "olmo2",
        {"tie_word_embeddings": False},
        "olmo2",
        {},
        parts={"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"},
    ),
    "phi3": Made("phi3", {"sliding_window": 7}, "phi3", {"attention.sliding_window": 7, "rope.dimension_count": 16}),
    "phi3-long": Made(
        "phi3",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
                "long_factor": _FACTORS["long"],
                "short_factor": _FACTORS["short"],
                "attention_factor": 1.25,
                "original_max_position_embeddings": 64,
            },
        },
        "phi3",
        {
            "rope.dimension_count": 12,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": 1.25,
        },
        factors=_FACTORS,
    ),
    "qwen3moe": Made(
        "qwen3_moe",
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
        },
        "qwen3moe",
        {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32},
    ),
    "smollm3": Made("smollm3", {"no_rope_layer_interval": 4}, "smollm3", {}, reordered=True),
}


def write_made(made: Made, tokenizer: Path, path: Path) -> PreTrainedModel:
    """Writes a random model of the family; returns it. Experts are Q8_0 blocks, in the model returned as well."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(made.model_type, **{**SIZES, **made.config})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    writer = GGUFWriter(path, made.architecture)
    _write_keys(writer, made)
    _write_vocabulary(writer, json.loads((tokenizer / "tokenizer.json").read_text()))
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "norm" in name:
                tensor.add_(torch.randn_like(tensor) * 0.2)
            if ".experts." in name:
                _write_experts(writer, name, tensor)
            elif name != "lm_head.weight" or not config.tie_word_embeddings:
                _write(writer, made, name, tensor)
    for kind, factors in made.factors.items():
        writer.add_tensor(f"rope_factors_{kind}.weight", np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _write_keys(writer: GGUFWriter, made: Made) -> None:
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(SIZES["rms_norm_eps"])
    for key, value in made.keys.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{made.architecture}.{key}", value)


def _write_vocabulary(writer: GGUFWriter, tokenizer: dict[str, Any]) -> None:
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)


def _write(writer: GGUFWriter, made: Made, name: str, tensor: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", owner):
        part = {**_PARTS, **made.parts}[match[2]]
        if made.reordered and part in ("attn_q", "attn_k"):
            heads = SIZES["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
            tensor = tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
        stored = f"blk.{match[1]}.{part}.{leaf}"
    else:
        stored = f"{_ENDS[owner]}.{leaf}"
    offset = 1.0 if made.offset and "norm" in name else 0.0
    writer.add_tensor(stored, (tensor + offset).numpy())


def _write_experts(writer: GGUFWriter, name: str, tensor: Tensor) -> None:
    """transformers stacks the rows of gate and up, which the file has apart."""
    layer = name.split(".")[2]
    kind = GGMLQuantizationType.Q8_0
    rounded = quantize(tensor.numpy(), kind)
    tensor.copy_(torch.from_numpy(dequantize(rounded, kind)))
    half = tensor.shape[1] // 2
    parts = {"gate": rounded[:, :half], "up": rounded[:, half:]} if "gate_up" in name else {"down": rounded}
    for part, rows in parts.items():
        writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", np.ascontiguousarray(rows), raw_dtype=kind)
