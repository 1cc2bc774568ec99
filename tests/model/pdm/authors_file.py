"""Writes what `read_authors` reads: a file of the authors' format v11."""

from pathlib import Path
from typing import Any

import torch

from speculation.pdm.module import DraftModule

_VERSION = 11


def write_authors(module: DraftModule, path: Path, stages: int, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes a v11 file of a module with qwen3 layers, for a pipeline of `stages` stages."""
    config = module.config
    content: dict[str, Any] = {
        "version": _VERSION,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "num_stages": stages,
        "num_spec_layers": config.layers,
        "num_aggr_types": len(config.anchors),
        "aggr_feature_bound": list(config.anchors),
        "trained_with_use_deepest": True,
        "base_model_path": config.target,
    }
    if config.draft_token_ids is not None:
        content["draft_token_ids"] = list(config.draft_token_ids)
    weights = {name: tensor.detach().to("cpu", dtype) for name, tensor in module.state_dict().items()}
    torch.save({"state_dict": weights, "config": content}, path)
