"""From the keys of a GGUF file to a config.json. Pure.

llama.cpp reads `general.*`, `tokenizer.*`, `split.*` and the keys that begin with the architecture's name. Of those
every one is applied, known to be without effect, or refused by name. Keys of other tools are none of its business.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from workers.prepare.gguf.families import OWN, plain
from workers.prepare.gguf.keys import Keys
from workers.prepare.gguf.rope import Factors
from workers.shared.errors import ConfigError

# Architecture in the file -> model_type of transformers. A Mistral file calls itself "llama": it computes the same.
MODEL_TYPES: Mapping[str, str] = {
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "granite": "granite",
    "llama": "llama",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "smollm3": "smollm3",
}
WITH_EXPERTS = {"llama": "mixtral"}  # what a file is where it has experts
_CLASSES = {
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}


def model_config(keys: Mapping[str, Any], tensors: Mapping[str, Sequence[int]], factors: Factors) -> dict[str, Any]:
    """config.json for a file with these keys, tensors (shapes by name) and, if it has any, `factors` of frequencies.

    Raises `ConfigError` naming the key that is missing or not supported.
    """
    architecture = keys.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in MODEL_TYPES:
        supported = ", ".join(MODEL_TYPES)
        raise ConfigError(
            f"general.architecture {architecture!r} is not supported in GGUF files; these are: {supported}"
        )
    own = Keys(keys, architecture)
    kind = MODEL_TYPES[architecture]
    if architecture in WITH_EXPERTS and keys.get(f"{architecture}.expert_count"):
        kind = WITH_EXPERTS[architecture]
    heads: int = own.take_one("attention.head_count")
    hidden: int = own.take("embedding_length")
    head_dim: int = own.take("attention.key_length", hidden // heads)
    config: dict[str, Any] = {
        "architectures": [_CLASSES[kind]],
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": own.take("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": own.take_one("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": own.take_one("feed_forward_length"),
        "max_position_embeddings": own.take("context_length"),
        "rms_norm_eps": own.take("attention.layer_norm_rms_epsilon"),
        "vocab_size": tensors["token_embd.weight"][0] if "token_embd.weight" in tensors else 0,
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    for name, expected in (
        ("attention.value_length", head_dim),
        *([] if kind == "phi3" else [("rope.dimension_count", head_dim)]),
        ("vocab_size", config["vocab_size"]),
    ):
        if (value := own.take(name, expected)) != expected:
            raise own.refusal(name, value, f"only {expected} is supported for this model")
    config |= OWN.get(kind, plain)(own, config, factors)
    if architecture in ("llama", "granite", "smollm3"):
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    if kind == "mixtral" and (config.pop("attention_bias") or config.pop("mlp_bias")):
        raise ConfigError("biases in a file of architecture 'llama' with experts are not supported")
    if own.has("attention.scale") and (scale := own.take("attention.scale")) not in (0.0, head_dim**-0.5):
        raise own.refusal("attention.scale", scale, "only 1 / sqrt(attention.key_length) is supported")
    own.refuse_rest()
    return config
