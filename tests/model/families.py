"""A tiny random model of every family beside those of `conftest`: what each has of its own is in the configuration."""

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from tests.model.conftest import SIZES as ALL_SIZES
from workers.shared.model_files.families import FAMILIES

LAYERS = 4
SIZES: dict[str, Any] = ALL_SIZES | {"num_hidden_layers": LAYERS}
_WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2)}
_PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(6)],
    "long_factor": [2.0 + i for i in range(6)],
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "truncate": False}}
_YARN["rope_parameters"]["original_max_position_embeddings"] = 64
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
_LATENT = {
    "num_key_value_heads": 4,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 12,
}
_DEEP_YARN = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
        "original_max_position_embeddings": 64,
    }
}
_HYBRID = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
_GATED_DELTA = {
    "layer_types": _HYBRID,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_MROPE = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    }
}
_CONVOLUTIONS = {"layer_types": ["conv", "conv", "full_attention", "conv"], "conv_L_cache": 3}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 10,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 16,
}

# Name -> model_type and fields of its own.
_OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "apertus": ("apertus", {}),
    "arcee": ("arcee", {"mlp_bias": True}),
    "cohere": ("cohere", {"logit_scale": 0.25, "use_qk_norm": True, "tie_word_embeddings": False}),
    "cohere2": ("cohere2", {"logit_scale": 0.25, **_WINDOWS}),
    "ernie4_5": ("ernie4_5", {"use_bias": True}),
    "exaone4": ("exaone4", {**_WINDOWS}),
    "gemma": ("gemma", {"head_dim": 16}),
    "gemma2": (
        "gemma2",
        {"head_dim": 16, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0, **_WINDOWS},
    ),
    "glm": ("glm", {"head_dim": 12, **_PARTIAL}),
    "glm4": ("glm4", {"head_dim": 12, **_PARTIAL}),
    "granite": ("granite", _GRANITE),
    "helium": ("helium", {"head_dim": 12}),
    "llama-dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}}),
    "ministral": ("ministral", {"head_dim": 16, **_WINDOWS}),
    "ministral3": (
        "ministral3",
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,  # behind which queries grow
                "llama_4_scaling_beta": 0.5,
            },
        },
    ),
    "olmo": ("olmo", {"clip_qkv": 0.5}),
    "olmo3": ("olmo3", {**_WINDOWS}),
    "phi": ("phi", {**_PARTIAL}),
    "phi3": ("phi3", {"sliding_window": 7}),
    "phi3-short": ("phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 64}),
    "seed_oss": ("seed_oss", {"head_dim": 16, "attention_out_bias": True, "mlp_bias": True}),
    "qwen2_moe": ("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 40}),
    "qwen3_moe": ("qwen3_moe", {**_EXPERTS, "head_dim": 16, "mlp_only_layers": [1]}),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 9}),
    "olmoe": ("olmoe", _EXPERTS),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16, **_WINDOWS, **_YARN}),
    "glm4_moe": (
        "glm4_moe",
        {
            **{name: value for name, value in _EXPERTS.items() if name != "num_experts"},
            **_PARTIAL,
            "n_routed_experts": 6,
            "n_group": 2,
            "topk_group": 1,
            "head_dim": 16,
            "routed_scaling_factor": 1.5,
            "use_qk_norm": True,
        },
    ),
    "deepseek_v3": ("deepseek_v3", {**_LATENT, "rope_interleave": True, "n_group": 2, "topk_group": 1, **_DEEP_YARN}),
    "deepseek_v2": (
        "deepseek_v2",
        {**_LATENT, **_DEEP_YARN, "topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1},
    ),
    "deepseek_v2-lite": ("deepseek_v2", {**_LATENT, "q_lora_rank": None}),
    "glm4_moe_lite": ("glm4_moe_lite", {**_LATENT, "q_lora_rank": None}),
    "granitemoe": ("granitemoe", {**_GRANITE, "num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3_next": (
        "qwen3_next",
        {**_EXPERTS, **_GATED_DELTA, **_PARTIAL, "head_dim": 16, "shared_expert_intermediate_size": 40},
    ),
    "qwen3_5": ("qwen3_5_text", {**_GATED_DELTA, **_MROPE, "head_dim": 16}),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        {**_EXPERTS, **_GATED_DELTA, **_MROPE, "head_dim": 16, "shared_expert_intermediate_size": 40},
    ),
    "lfm2": ("lfm2", {**_CONVOLUTIONS, "conv_bias": True}),
    "lfm2_moe": ("lfm2_moe", {**_CONVOLUTIONS, **_EXPERTS, "num_dense_layers": 2}),
    "falcon_h1": (
        "falcon_h1",
        {**_MAMBA, "mamba_d_ssm": 64, "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9], "lm_head_multiplier": 0.5},
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        {
            **_MAMBA,
            **_GRANITE,
            "mamba_d_head": 12,
            "layer_types": _HYBRID,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
        },
    ),
    "granitemoehybrid-dense": (
        "granitemoehybrid",
        {
            **_MAMBA,
            "mamba_d_head": 12,
            "layer_types": _HYBRID,
            "num_local_experts": 0,
            "position_embedding_type": "rope",
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        {
            "layer_types": ["linear_attention", "moe", "full_attention", "mlp"],
            "head_dim": 12,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "n_groups": 2,
            "ssm_state_size": 10,
            "conv_kernel": 4,
            "chunk_size": 16,
            "n_routed_experts": 6,
            "n_group": 2,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            "moe_latent_size": 20,
            "routed_scaling_factor": 1.5,
            "time_step_min": 1e-9,  # which transformers applies to prompts, and not to single tokens
        },
    ),
    "gemma4": (
        "gemma4_text",
        {
            "head_dim": 16,
            "per_layer_config": {
                1: {"head_dim": 24, "num_key_value_heads": 1},
                3: {"head_dim": 24, "num_key_value_heads": 1},
            },
            "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": 9.0,
            **_WINDOWS,
        },
    ),
    "gemma4-experts": (
        "gemma4_text",
        {
            "head_dim": 16,
            "per_layer_config": {1: {"head_dim": 24}, 3: {"head_dim": 24}},
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
            **_WINDOWS,
        },
    ),
    "starcoder2": ("starcoder2", {"use_bias": True, "sliding_window": 7}),
}


def family_configs() -> dict[str, PreTrainedConfig]:
    """Configurations by name."""
    return {name: AutoConfig.for_model(kind, **{**SIZES, **own}) for name, (kind, own) in _OWN.items()}


def untested(of_conftest: set[str]) -> set[str]:
    """Families that no configuration here or in `of_conftest` belongs to."""
    return set(FAMILIES) - {kind for kind, _ in _OWN.values()} - of_conftest
