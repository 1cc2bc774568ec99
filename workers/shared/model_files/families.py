"""The families of models that are served: one row each, with what of config.json it is computed with; torch-free."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

_COMMON = frozenset({
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
})  # fmt: skip
_BIASES = frozenset({"attention_bias", "mlp_bias"})
_WINDOW = frozenset({"sliding_window", "sliding_window_pattern", "_sliding_window_pattern"})
_QWEN_WINDOW = frozenset({"sliding_window", "use_sliding_window", "max_window_layers"})
_GEMMA = frozenset({"attention_bias", "hidden_activation", "query_pre_attn_scalar", "final_logit_softcapping"})
_GRANITE = frozenset({"embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"})
_PARTIAL = frozenset({"partial_rotary_factor"})
_MROPE = frozenset({"mrope_interleaved", "mrope_section"})  # of text alone, all three positions are one
_EXPERTS = frozenset({
    "decoder_sparse_step",
    "mlp_only_layers",
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts",
    "num_experts_per_tok",
    "num_local_experts",
})  # fmt: skip
_LATENT = frozenset({
    "kv_lora_rank",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "q_lora_rank",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "rope_interleave",
    "routed_scaling_factor",
    "topk_group",
    "v_head_dim",
})  # fmt: skip
_GATED_DELTA = frozenset({
    "full_attention_interval",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
})  # fmt: skip
_LFM2 = frozenset({"conv_L_cache", "conv_bias", "norm_eps"})
_MAMBA = frozenset({
    "mamba_chunk_size",
    "mamba_conv_bias",
    "mamba_d_conv",
    "mamba_d_head",
    "mamba_d_state",
    "mamba_expand",
    "mamba_n_groups",
    "mamba_n_heads",
    "mamba_proj_bias",
    "time_step_limit",
})  # fmt: skip

# One kind of experts and one way to choose them each, whatever these fields say.
_ROUTED = frozenset({"ep_size", "moe_layer_freq", "scoring_func", "topk_method"})
_NEMOTRON = frozenset({
    "attention_head_dim",
    "chunk_size",
    "conv_kernel",
    "expand",
    "hybrid_override_pattern",
    "layer_norm_epsilon",
    "layers_block_type",
    "mamba_head_dim",
    "mamba_hidden_act",
    "mamba_num_heads",
    "mamba_ssm_cache_dtype",
    "mlp_bias",
    "mlp_hidden_act",
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_intermediate_size",
    "moe_shared_expert_overlap",  # when they are computed
    "mtp_hybrid_override_pattern",  # of layers that predict further tokens
    "mtp_layers_block_type",
    "n_group",
    "n_groups",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "rescale_prenorm_residual",  # before training
    "routed_scaling_factor",
    "ssm_state_size",
    "time_step_floor",  # before training, and so is the largest
    "time_step_limit",
    "time_step_max",
    "time_step_min",
    "time_step_rank",
    "topk_group",
    "use_bias",
    "use_conv_bias",
    "use_mamba_kernels",
})  # fmt: skip

Mixer = Literal["gated_delta", "short_convolution", "mamba2"]


class Family(NamedTuple):
    """One `model_type`: what it is computed with, and what its model does around the decoder layers."""

    fields: frozenset[str]  # of config.json that count; any other that is set and known to matter is refused
    since: str  # the version that served it first
    norm: str = "norm"  # name of the final norm beside the layers
    embedding_factor: str | None = None  # field that embeddings are multiplied by
    logits_factor: str | None = None  # field that logits are multiplied by
    logits_divisor: str | None = None  # field that they are divided by
    mixer: Mixer | None = None  # what layers have that remember in a state
    latent: bool = False  # whether keys and values are made of latents
    by_column: bool = False  # whether it has the matrices of experts as [columns, rows]
    positioned: bool = False  # whether layers do more with positions than to rotate
    uneven: bool = False  # whether keys and values are not of one shape in all layers
    beside: bool = False  # whether every layer has both it and attention; else a list says which layer has which
    tied: bool = False  # whether head and embedding are tied where config.json does not say
    assumed: Mapping[str, object] = {}  # what transformers takes for fields that are refused, where nothing is said
    only: Mapping[str, tuple[object, ...]] = {}  # the values of some fields that are served, unset ones aside


FAMILIES: Mapping[str, Family] = {
    "llama": Family(_COMMON | _BIASES, "0.1"),
    "qwen2": Family(_COMMON | _QWEN_WINDOW, "0.1"),
    "qwen3": Family(_COMMON | _QWEN_WINDOW | {"attention_bias"}, "0.1"),
    "mistral": Family(_COMMON | {"sliding_window"}, "0.1"),
    "olmo2": Family(_COMMON | {"attention_bias"}, "0.2"),
    "smollm3": Family(
        _COMMON | _BIASES | _QWEN_WINDOW | {"no_rope_layer_interval", "no_rope_layers"}, "0.2", tied=True
    ),
    "gemma3_text": Family(_COMMON | _GEMMA | _WINDOW | {"rope_local_base_freq"}, "0.1", tied=True),
    "apertus": Family(_COMMON | {"attention_bias", "post_norm", "qk_norm"}, "0.2"),
    "arcee": Family(_COMMON | _BIASES, "0.2"),
    "cohere": Family(
        _COMMON | {"attention_bias", "layer_norm_eps", "logit_scale", "use_qk_norm"},
        "0.2",
        logits_factor="logit_scale",
        tied=True,
    ),
    "cohere2": Family(
        _COMMON | _WINDOW | {"attention_bias", "layer_norm_eps", "logit_scale", "order_of_interleaved_layers"},
        "0.2",
        logits_factor="logit_scale",
        tied=True,
    ),
    "ernie4_5": Family(_COMMON | {"use_bias"}, "0.2", tied=True),
    "exaone4": Family(_COMMON | _WINDOW, "0.2"),
    "gemma": Family(_COMMON | {"attention_bias", "hidden_activation"}, "0.2", tied=True),
    "gemma2": Family(_COMMON | _GEMMA | _WINDOW | {"attn_logit_softcapping"}, "0.2", tied=True),
    "glm": Family(_COMMON | _PARTIAL | {"attention_bias"}, "0.2"),
    "glm4": Family(_COMMON | _PARTIAL | {"attention_bias"}, "0.2"),
    "granite": Family(
        _COMMON | _BIASES | _GRANITE,
        "0.2",
        embedding_factor="embedding_multiplier",
        logits_divisor="logits_scaling",
    ),
    "helium": Family(_COMMON | _BIASES, "0.2"),
    "ministral": Family(_COMMON | {"sliding_window"}, "0.2"),
    "ministral3": Family(
        _COMMON | {"llama_4_scaling_beta", "sliding_window"}, "0.2", positioned=True
    ),
    "olmo": Family(_COMMON | {"attention_bias", "clip_qkv"}, "0.2"),
    "olmo3": Family(_COMMON | {"attention_bias", "sliding_window"}, "0.2"),
    "phi": Family(
        _COMMON | _PARTIAL | {"layer_norm_eps", "qk_layernorm"}, "0.2", norm="final_layernorm"
    ),
    "phi3": Family(_COMMON | _PARTIAL | {"original_max_position_embeddings", "sliding_window"}, "0.2"),
    "seed_oss": Family(_COMMON | _BIASES | {"attention_out_bias"}, "0.2"),
    "qwen2_moe": Family(
        _COMMON | _QWEN_WINDOW | _EXPERTS | {"qkv_bias", "shared_expert_intermediate_size"}, "0.2"
    ),
    "qwen3_moe": Family(_COMMON | _QWEN_WINDOW | _EXPERTS | {"attention_bias"}, "0.2"),
    "mixtral": Family(_COMMON | {"sliding_window", "num_experts_per_tok", "num_local_experts"}, "0.2"),
    "olmoe": Family(_COMMON | _EXPERTS | {"attention_bias", "clip_qkv"}, "0.2"),
    "gpt_oss": Family(
        _COMMON
        | {"attention_bias", "experts_per_token", "initial_context_length", "num_experts_per_tok", "num_local_experts"}
        | {"sliding_window", "swiglu_alpha", "swiglu_limit"},
        "0.2",
        by_column=True,
    ),
    "glm4_moe": Family(
        _COMMON
        | _PARTIAL
        | _EXPERTS
        | {"attention_bias", "first_k_dense_replace", "n_group", "n_routed_experts", "n_shared_experts"}
        | {"routed_scaling_factor", "topk_group", "use_qk_norm"},
        "0.2",
    ),
    "deepseek_v3": Family(
        _COMMON | _PARTIAL | _EXPERTS | _LATENT | _ROUTED | {"attention_bias", "first_k_dense_replace"},
        "0.2",
        latent=True,
        only={"moe_layer_freq": (1,), "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)},
    ),
    "deepseek_v2": Family(
        _COMMON | _EXPERTS | _LATENT | _ROUTED | {"attention_bias", "first_k_dense_replace", "mlp_bias"},
        "0.2",
        latent=True,
        only={
            "moe_layer_freq": (1,),
            "norm_topk_prob": (),
            "scoring_func": ("softmax",),
            "topk_method": ("greedy", "group_limited_greedy"),
        },
    ),
    "glm4_moe_lite": Family(
        _COMMON | _PARTIAL | _EXPERTS | _LATENT | {"attention_bias", "first_k_dense_replace", "mlp_layer_types"},
        "0.2",
        latent=True,
    ),
    "granitemoe": Family(
        _COMMON | _GRANITE | _BIASES | {"num_experts_per_tok", "num_local_experts"},
        "0.2",
        embedding_factor="embedding_multiplier",
        logits_divisor="logits_scaling",
    ),
    "qwen3_next": Family(
        _COMMON | _PARTIAL | _EXPERTS | _GATED_DELTA | {"attention_bias", "shared_expert_intermediate_size"},
        "0.2",
        mixer="gated_delta",
    ),
    "qwen3_5_text": Family(
        _COMMON | _PARTIAL | _GATED_DELTA | _MROPE | {"attention_bias"}, "0.2", mixer="gated_delta"
    ),
    "qwen3_5_moe_text": Family(
        _COMMON | _PARTIAL | _EXPERTS | _GATED_DELTA | _MROPE | {"attention_bias", "shared_expert_intermediate_size"},
        "0.2",
        mixer="gated_delta",
    ),
    "lfm2": Family(_COMMON | _LFM2 | {"block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of"}
        | {"block_dim", "block_ff_dim", "full_attn_idxs"},
        "0.2",
        norm="embedding_norm",
        mixer="short_convolution",
        tied=True,
    ),
    "lfm2_moe": Family(_COMMON | _LFM2 | _EXPERTS | {"num_dense_layers", "routed_scaling_factor", "use_expert_bias"},
        "0.2",
        norm="embedding_norm",
        mixer="short_convolution",
        tied=True,
    ),
    "falcon_h1": Family(
        _COMMON
        | _BIASES
        | _MAMBA
        | {"attention_in_multiplier", "attention_out_multiplier", "embedding_multiplier", "key_multiplier"}
        | {"lm_head_multiplier", "mamba_d_ssm", "mamba_norm_before_gate", "mamba_rms_norm", "mamba_use_mlp"}
        | {"mlp_expansion_factor", "mlp_multipliers", "projectors_bias"}
        | {"ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier"},
        "0.2",
        norm="final_layernorm",
        embedding_factor="embedding_multiplier",
        logits_factor="lm_head_multiplier",
        mixer="mamba2",
        beside=True,
    ),
    "granitemoehybrid": Family(
        _COMMON
        | _GRANITE
        | _BIASES
        | _MAMBA
        | {"layers_block_type", "num_experts_per_tok", "num_local_experts", "position_embedding_type"}
        | {"shared_intermediate_size"},
        "0.2",
        embedding_factor="embedding_multiplier",
        logits_divisor="logits_scaling",
        mixer="mamba2",
    ),
    "nemotron_h": Family(
        _COMMON | _NEMOTRON,
        "0.2",
        norm="norm_f",
        mixer="mamba2",
        only={"attention_head_dim": (128,), "mamba_ssm_cache_dtype": ("float32",)},
    ),
    "gemma4_text": Family(
        _COMMON
        | _EXPERTS
        | _WINDOW
        | _PARTIAL
        | {"attention_bias", "attention_k_eq_v", "enable_moe_block", "final_logit_softcapping", "global_head_dim"}
        | {"hidden_activation", "num_global_key_value_heads", "per_layer_config", "top_k_experts"}
        | {"vocab_size_per_layer_input"},
        "0.2",
        tied=True,
        uneven=True,
        assumed={"hidden_size_per_layer_input": 256},
    ),
    "starcoder2": Family(_COMMON | {"norm_epsilon", "sliding_window", "use_bias"}, "0.2", tied=True),
}  # fmt: skip


def family_of(config: Mapping[str, Any]) -> Family:
    """The row of a supported config.json."""
    return FAMILIES[config["model_type"]]
