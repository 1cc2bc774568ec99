"""The built-in random model, for tests and rehearsals: real architecture and tokenizer, meaningless text, no torch."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from workers.prepare.chatml import END_OF_TEXT, END_OF_TURN, START_OF_TURN, write_tokenizer

LAYERS = 16
HIDDEN = 64
HEADS = 4
KV_HEADS = 2
INTERMEDIATE = 128
VOCABULARY = 512
POSITIONS = 4096
SEED = 20852

_CONTROL_TOKENS = (END_OF_TEXT, START_OF_TURN, END_OF_TURN)  # in the order of their ids


def write_tiny_model(folder: Path) -> None:
    """Writes the model into an empty folder; the same bytes every time."""
    pad, bos, eos = range(len(_CONTROL_TOKENS))
    tokens = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "dtype": "float32",
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": POSITIONS,
        "mlp_bias": False,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
        **tokens,
    }
    save_file(_weights(np.random.default_rng(SEED)), folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, VOCABULARY)
    for name, content in (("config.json", config), ("generation_config.json", tokens)):
        (folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(content)))


def _weights(random: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Random weights by tensor name.

    Unit-scale embeddings and gain-preserving layers make each token depend on many that precede it, so greedy text
    wanders instead of repeating one token.
    """

    def matrix(rows: int, columns: int, gain: float) -> NDArray[np.float32]:
        return random.normal(0.0, gain / columns**0.5, (rows, columns)).astype(np.float32)

    key_size = HIDDEN // HEADS * KV_HEADS
    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN, HIDDEN**0.5),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN, 2.0),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{prefix}.post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{prefix}.self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN, 2.0),
            f"{prefix}.self_attn.k_proj.weight": matrix(key_size, HIDDEN, 2.0),
            f"{prefix}.self_attn.v_proj.weight": matrix(key_size, HIDDEN, 1.0),
            f"{prefix}.self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN, 1.0),
            f"{prefix}.mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN, 1.5),
            f"{prefix}.mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN, 1.5),
            f"{prefix}.mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE, 1.0),
        }
    return tensors
