"""Writes small GGUF files, as llama.cpp would have made them of the built-in model."""

import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, TokenType, quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file


def write_gguf(
    tiny: Path,
    path: Path,
    architecture: str = "llama",
    keys: dict[str, str | int | float] | None = None,
    extra: dict[str, NDArray[np.float32]] | None = None,
    kinds: tuple[str, str] | None = None,
) -> None:
    """The tiny model with two layers, in the format of llama.cpp; more `keys` and tensors on top.

    Matrices are float16, or blocks of these `kinds`: those of embedding and head, and of the layers.
    """
    tensors = load_file(tiny / "model.safetensors")
    tokenizer = json.loads((tiny / "tokenizer.json").read_text())
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(512)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    names |= {f"blk.{i}.{part}": f"model.layers.{i}.{name}" for i in range(2) for part, name in parts.items()}
    for name, source in names.items():
        tensor = tensors[f"{source}.weight"]
        if name.endswith(("attn_q", "attn_k")):  # llama.cpp keeps numbers that are rotated together side by side
            heads = 4 if name.endswith("q") else 2
            tensor = tensor.reshape(heads, 2, -1, 64).swapaxes(1, 2).reshape(tensor.shape)
        if tensor.ndim == 1:
            writer.add_tensor(f"{name}.weight", tensor)
        elif kinds is None:
            writer.add_tensor(f"{name}.weight", tensor.astype(np.float16))
        else:
            kind = GGMLQuantizationType[kinds["blk" in name]]
            writer.add_tensor(f"{name}.weight", quantize(tensor, kind), raw_dtype=kind)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    for key, value in (keys or {}).items():
        kind = {str: GGUFValueType.STRING, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32}[type(value)]
        writer.add_key_value(key, value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
