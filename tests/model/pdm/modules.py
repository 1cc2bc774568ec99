"""Random draft modules for tests, with weights large enough that a wrong row shows."""

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from speculation.decisions.features import RowRule
from speculation.pdm.config import LayerType, ModuleConfig
from speculation.pdm.module import DraftModule

ANCHORS = (0, 2, 3, 5, 8)


def random_module(
    target: PreTrainedConfig,
    layers: int = 2,
    layer_type: LayerType = "target",
    anchors: tuple[int, ...] = ANCHORS,
    draft_token_ids: tuple[int, ...] | None = None,
    rows: RowRule = RowRule.IN_FLIGHT,
) -> DraftModule:
    """A module of the target called "tiny"."""
    config = ModuleConfig(
        target="tiny",
        target_layers=target.num_hidden_layers,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        anchors=anchors,
        layers=layers,
        rows=rows,
        layer_type=layer_type,
        draft_token_ids=draft_token_ids,
    )
    module = DraftModule(config, target, torch.rand(target.hidden_size) + 0.5)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.normal_(0.0, 0.15, generator=generator)
    return module


def random_anchors(module: DraftModule, tokens: int) -> Tensor:
    """`[tokens, anchors, H]`."""
    generator = torch.Generator().manual_seed(tokens)
    return torch.randn(tokens, len(module.config.anchors), module.config.hidden_size, generator=generator)
