"""Names and layouts of a GGUF file's tensors, and those that transformers' modules want. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from workers.prepare.gguf.rope import FREQUENCIES, LONG, SHORT
from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import EMBEDDING, FINAL_NORM, HEAD

ROPE_FACTORS = (FREQUENCIES, LONG, SHORT)  # become part of the configuration

_ENDS = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
_COMMON = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_PLAIN_NORMS = {"ffn_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_JOINT = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}  # Phi-3's
_BEHIND = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}  # OLMo 2's
# Tensors of all experts of a layer become one for each, "{}".
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PARTS: Mapping[str, Mapping[str, str]] = {
    "gemma": {**_COMMON, **_PLAIN_NORMS},
    "gemma2": {**_COMMON, **_GEMMA_NORMS},
    "gemma3": {**_COMMON, **_GEMMA_NORMS, **_HEAD_NORMS},
    "granite": {**_COMMON, **_PLAIN_NORMS},
    "llama": {**_COMMON, **_PLAIN_NORMS, **_MIXTRAL},
    "olmo2": {**_COMMON, **_BEHIND, **_HEAD_NORMS},
    "phi3": {**_COMMON, **_PLAIN_NORMS, **_JOINT},
    "qwen2": {**_COMMON, **_PLAIN_NORMS},
    "qwen3": {**_COMMON, **_PLAIN_NORMS, **_HEAD_NORMS},
    "qwen3moe": {**_COMMON, **_PLAIN_NORMS, **_HEAD_NORMS, **_EXPERTS},
    "smollm3": {**_COMMON, **_PLAIN_NORMS},
}
# Architectures whose files have the rows of queries and keys in another order.
_REORDERED = ("granite", "llama", "smollm3")
_OFFSET_NORMS = ("gemma", "gemma2", "gemma3")  # whose norms are stored with the 1 that transformers' module adds
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def tensor_names(architecture: str, name: str, shape: Sequence[int]) -> list[str]:
    """transformers' name of a file's tensor, or names of those that it holds: one an expert, the first of `shape`.

    Raises `ConfigError` naming one that the model would have to ignore.
    """
    if name in _ENDS:
        return [_ENDS[name]]
    match = _BLOCK.fullmatch(name)
    part = _PARTS[architecture].get(match[2]) if match else None
    if match is None or part is None:
        raise ConfigError(f"tensor {name} is not known in a file of architecture {architecture!r}")
    named = f"model.layers.{match[1]}.{part}.{match[3]}"
    return [named.format(expert) for expert in range(shape[0])] if "{}" in part else [named]


Change = Callable[[NDArray[Any]], NDArray[Any]]


def change_of(architecture: str, name: str, config: Mapping[str, Any]) -> Change | None:
    """What has to be done to a tensor's rows: llama.cpp stores some of them otherwise; `None` where nothing.

    A change of the order of rows applies to packed rows as well.
    """
    if architecture in _REORDERED and (match := _BLOCK.fullmatch(name)) and match[2] in ("attn_q", "attn_k"):
        heads: int = config["num_attention_heads" if match[2] == "attn_q" else "num_key_value_heads"]
        return lambda rows: _halves_together(rows, heads)
    if architecture in _OFFSET_NORMS and name.endswith("norm.weight"):
        return lambda rows: rows - 1
    return None


def _halves_together(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """The file has the two numbers that are rotated together next to each other; transformers has them half a head
    apart."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
