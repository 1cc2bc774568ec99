"""The whole model as transformers computes it: what others train on, and what Echelon is compared with."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from workers.model.checkpoint import Checkpoint
from workers.model.loader import load_config

_CPU = torch.device("cpu")


def load_reference(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a prepared folder on the CPU, with packed weights unpacked to `dtype`, a text tower by itself.

    Raises `ConfigError`, or what transformers raises, where it cannot be loaded.
    """
    checkpoint = Checkpoint(folder)
    if not checkpoint.packed and all(entry.stored_as == name for name, entry in checkpoint.entries.items()):
        stored: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        return stored
    config = load_config(folder)
    with torch.device("meta"):
        architecture: Any = type(AutoModelForCausalLM.from_config(config))
    config.__dict__.pop("quantization_config", None)  # what follows is not quantised any more
    tensors = dict(checkpoint.load(checkpoint.entries, dtype, _CPU))
    model: PreTrainedModel = architecture.from_pretrained(None, config=config, state_dict=tensors, dtype=dtype)
    if (folder / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model
