"""Whether a checkpoint holds exactly the tensors that its config.json calls for, from headers alone; torch-free."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.shared.errors import ConfigError
from workers.shared.model_files.blocks import FIELD, packed_kinds
from workers.shared.model_files.facts import head_dim
from workers.shared.model_files.families import family_of
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.tensor_sizes import (
    DTYPE_BYTES,
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    TensorEntry,
    tensor_entries,
    tensor_files,
)
from workers.shared.packed.inventory import read_inventory

Shapes = dict[str, tuple[int, ...]]

# Families whose shapes are known here. Those of others are asked of transformers, which takes seconds to import.
KNOWN = frozenset({"gemma3_text", "llama", "mistral", "olmo2", "qwen2", "qwen3", "smollm3"})
_PLAIN_NORMS = ("input_layernorm", "post_attention_layernorm")
_NORMS: Mapping[str, tuple[str, ...]] = {
    "gemma3_text": (*_PLAIN_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm"),
}
_HEAD_NORMS = frozenset({"qwen3", "gemma3_text"})  # have a norm for each head's queries and keys
_JOINT_NORMS = frozenset({"olmo2"})  # have a norm for the queries and the keys of all heads together
_IGNORED = "rotary_emb.inv_freq"  # old checkpoints keep what is computed from the configuration


def expected_tensors(config: Mapping[str, Any]) -> Shapes:
    """Shapes by name of what a model of a supported architecture is made of, its own LM head included."""
    kind, hidden, inner = config["model_type"], config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * head_dim(config)
    keys = (config.get("num_key_value_heads") or config["num_attention_heads"]) * head_dim(config)
    layer: Shapes = {f"{norm}.weight": (hidden,) for norm in _NORMS.get(kind, _PLAIN_NORMS)}
    projections = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for name, shape in projections.items():
        layer[f"{name}.weight"] = shape
        if _biased(config, name):
            layer[f"{name}.bias"] = shape[:1]
    if kind in _HEAD_NORMS:
        layer |= {f"self_attn.{part}_norm.weight": (head_dim(config),) for part in "qk"}
    if kind in _JOINT_NORMS:
        layer |= {"self_attn.q_norm.weight": (queries,), "self_attn.k_norm.weight": (keys,)}
    whole: Shapes = {
        f"model.layers.{index}.{name}": shape
        for index in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }
    vocabulary = (config["vocab_size"], hidden)
    return {EMBEDDING: vocabulary, **whole, FINAL_NORM: (hidden,), HEAD: vocabulary}


def _biased(config: Mapping[str, Any], projection: str) -> bool:
    if config["model_type"] == "qwen2":
        return projection.endswith(("q_proj", "k_proj", "v_proj"))
    return bool(config.get("mlp_bias" if projection.startswith("mlp.") else "attention_bias"))


def check_extents(folder: Path) -> None:
    """Raises `ConfigError` naming a tensor that is cut off or has a dtype that nobody knows."""
    files = tensor_files(folder)
    sizes = {path: path.stat().st_size for path in set(files.values())}
    for name, entry in tensor_entries(folder).items():
        _check_extent(name, entry, files[name], sizes[files[name]])


def check_tensors(folder: Path) -> None:
    """Raises `ConfigError` naming a tensor that is missing, misshapen or not called for; of `KNOWN` families only."""
    check_extents(folder)
    config = read_json(folder / "config.json")
    files = tensor_files(folder)
    try:
        expected = expected_tensors(config)
    except KeyError as error:
        raise ConfigError(f"{folder / 'config.json'}: {error} is missing") from error
    tied = config.get("tie_word_embeddings", family_of(config).tied)
    weights = read_inventory(folder)
    entries = weights.entries
    for name in packed_kinds(config):
        if name not in expected:
            raise ConfigError(f"{folder / 'config.json'}: {FIELD}: there is no {name} in this model")
    for name, shape in expected.items():
        if name not in entries:
            if name == HEAD and tied:
                continue
            raise ConfigError(f"{folder}: the checkpoint lacks {name}, which its config.json calls for")
        if entries[name].shape != shape:
            found = list(entries[name].shape)
            raise ConfigError(
                f"{files[weights.stored(name)]}: {name} is {found}, but config.json calls for {list(shape)}"
            )
    for name in entries:
        if name not in expected and not name.endswith(_IGNORED):
            raise ConfigError(f"{files[weights.stored(name)]}: {name} is a tensor that config.json does not call for")


def _check_extent(name: str, entry: TensorEntry, path: Path, size: int) -> None:
    if entry.dtype not in DTYPE_BYTES:
        raise ConfigError(f"{path}: {name} has dtype {entry.dtype}, which is not supported")
    if entry.nbytes != math.prod(entry.shape) * DTYPE_BYTES[entry.dtype]:
        raise ConfigError(f"{path}: {name} has {entry.nbytes} bytes, not as many as {entry.dtype}{list(entry.shape)}")
    end = entry.data_offsets[1]
    if end > size:
        raise ConfigError(f"{path}: cut short: {name} would end at byte {end} of {size}; fetch the file again")
