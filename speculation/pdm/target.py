"""What a draft module needs of the target: its family's parts, and a few tensors, read without loading the rest."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from workers.model.checkpoint import Checkpoint
from workers.shared.errors import ConfigError
from workers.shared.model_files.architectures import check_supported
from workers.shared.model_files.json_file import read_json
from workers.shared.model_files.tensor_sizes import EMBEDDING, FINAL_NORM, HEAD, tensor_files


def read_target_config(folder: Path) -> PreTrainedConfig:
    """The text configuration of a model folder; raises `ConfigError` where there is none."""
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: no usable config.json: {error}") from error
    return config.get_text_config()


def target_name(folder: Path) -> str:
    """What the model folder calls itself: `_name_or_path` of its config.json, or else the folder's name."""
    name = str(read_json(folder / "config.json").get("_name_or_path") or "")
    # transformers writes there where a model was loaded from, which may be a folder that no longer exists.
    return folder.resolve().name if not name or Path(name).is_absolute() else name


def read_tensor(folder: Path, name: str) -> Tensor:
    """One tensor of a model folder, unpacked, in its stored dtype; raises `ConfigError` where no file has it."""
    return Checkpoint(folder).tensor(name)


def read_head(folder: Path) -> Tensor:
    """The LM head `[V, H]`; the embedding where the two are tied."""
    return read_tensor(folder, HEAD if HEAD in tensor_files(folder) else EMBEDDING)


_OUTSIDE_OF_LAYERS = ("embedding_multiplier", "logit_scale", "logits_scaling")  # a draft module knows none of them


# Tested with draft modules whose layers are of the target's kind, and with those of plain layers only.
WITH_OWN_LAYERS = frozenset({"llama", "qwen2", "qwen3", "mistral", "gemma3_text"})
WITH_PLAIN_LAYERS = frozenset({
    "deepseek_v2",
    "deepseek_v3",
    "ernie4_5",
    "glm4_moe",
    "glm4_moe_lite",
    "gpt_oss",
    "mixtral",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi3",
    "qwen2_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
    "seed_oss",
    "smollm3",
})  # fmt: skip


def skeleton(config: PreTrainedConfig) -> Any:
    """A decoder of the family of the text configuration `config`, with one layer and no weights (on the meta device).

    Raises `ConfigError` for a family that cannot be served, or not with a draft module.
    """
    said = config.to_dict()
    check_supported(said)
    if config.model_type not in WITH_OWN_LAYERS | WITH_PLAIN_LAYERS:
        raise without_module(config, "the family is not tested with one")
    if unknown := [name for name in _OUTSIDE_OF_LAYERS if said.get(name) not in (None, 1, 1.0)]:
        raise without_module(config, f"its config.json has {unknown[0]}")
    small = copy.deepcopy(config)
    small.num_hidden_layers = 1
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:1]
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(small).model


def read_embedding(folder: Path, config: PreTrainedConfig, dtype: torch.dtype) -> Tensor:
    """Hidden state 0 of every token, `[V, H]`: the embedding, scaled where the family scales it (Gemma)."""
    table = read_tensor(folder, EMBEDDING).to(dtype, copy=True)  # or else it may be a page of the file, not of memory
    scale: float | None = getattr(skeleton(config).embed_tokens, "scalar_embed_scale", None)
    return table if scale is None else table * torch.tensor(scale).to(dtype)


@torch.no_grad()
def read_final_norm(folder: Path, config: PreTrainedConfig) -> Tensor:
    """What the final norm multiplies by, float32 `[H]`: its weight, or in some families (Gemma) one more."""
    norm: nn.Module = type(skeleton(config).norm)(1, eps=0.0)
    one = torch.ones(1)
    outputs: list[Tensor] = []
    for weight in (0.0, 1.0):
        for parameter in norm.parameters():
            parameter.fill_(weight)
        outputs.append(norm(one))
    added, weighed = outputs
    if not torch.equal(weighed, added + 1):
        raise without_module(config, "its final norm is no RMS norm")
    return read_tensor(folder, FINAL_NORM).float() + added


def without_module(config: PreTrainedConfig, reason: str) -> ConfigError:
    """An error that says why the target has no draft module."""
    return ConfigError(f"no draft module for model type {config.model_type!r}: {reason}; use --drafter ngram")
