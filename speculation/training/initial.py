"""Where a draft module's weights start."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from speculation.pdm.module import DraftModule, take_layer
from speculation.pdm.target import read_head, read_tensor
from speculation.training.examples.data import Example
from speculation.training.teacher import Teacher
from workers.shared.errors import ConfigError

_STD = 0.02
_FIT_TOKENS = 40_000
_RIDGE = 1e-3  # of the mean variance

Projections = Literal["fit", "identity", "normal"]


@torch.no_grad()
def initialise(
    module: DraftModule,
    target: Path,
    *,
    init_layers: tuple[int, ...],
    projections: Projections,
    seed: int,
) -> None:
    """Fills the module from the target in the model folder `target` and a generator seeded with `seed`.

    The draft head gets the target's rows. The tower gets the target's layers `init_layers`, if given, else normal
    noise. Projections that are not normal noise hand on, of the anchors of their type, the one that comes closest to
    what the first of these layers used to read: the finished rows then start with the target's own keys and values.
    (`fit_projections` improves on it for the types that do not reach as far.)
    Raises `ConfigError` where the target has no such layer.
    """
    generator = torch.Generator().manual_seed(seed)
    for weight in (child.weight for child in module.modules() if isinstance(child, nn.Linear)):
        weight.normal_(0.0, _STD, generator=generator)
    module.take_head(read_head(target))
    for layer, source in zip(module.spec_layers, init_layers, strict=False):
        if not 0 <= source < module.config.target_layers:
            raise ConfigError(f"--init-layers {source}: the target has layers 0..{module.config.target_layers - 1}")
        take_layer(layer, partial(read_tensor, target), source)
    if projections != "normal":
        hidden = module.config.hidden_size
        for kind, weight in enumerate(_projection_weights(module)):
            block = _nearest(module.config.anchors[: kind + 1], init_layers)
            weight.zero_()
            weight[:, block * hidden : (block + 1) * hidden] = torch.eye(hidden)


@torch.no_grad()
def fit_projections(
    module: DraftModule, teacher: Teacher, examples: Sequence[Example], init_layers: tuple[int, ...]
) -> None:
    """Makes the projections of shallow types the best linear guess of the anchor that the deep types hand on.

    Ridge regression over some training examples, each token weighted such that it counts by direction, since a norm
    follows. The first token is left out: in many models its hidden states are hundreds of times larger.
    """
    hidden, device = module.config.hidden_size, module.lm_head.weight.device
    wanted = _nearest(module.config.anchors, init_layers)
    width = wanted * hidden
    gram = torch.zeros(width, width, device=device)
    products = torch.zeros(width, hidden, device=device)
    tokens = 0
    for index, example in enumerate(examples):
        if example.held_out:
            continue
        anchors = teacher.targets([index]).anchors[1:].float()
        scaled = anchors / anchors[:, wanted].norm(dim=-1).clamp(min=1e-6)[:, None, None]
        known = scaled[:, :wanted].flatten(1)
        gram += known.T @ known
        products += known.T @ scaled[:, wanted]
        tokens += len(known)
        if tokens >= _FIT_TOKENS:
            break
    for kind in range(wanted):
        size = (kind + 1) * hidden
        seen = gram[:size, :size]
        ridge = _RIDGE * seen.diagonal().mean() * torch.eye(size, device=device)
        _projection_weights(module)[kind].copy_(torch.linalg.solve(seen + ridge, products[:size]).T)


def _projection_weights(module: DraftModule) -> list[Tensor]:
    return [projection.weight for projection in module.aggr_projs]  # type: ignore[misc]


def _nearest(anchors: Sequence[int], init_layers: tuple[int, ...]) -> int:
    """Index of the anchor nearest to what the first of `init_layers` reads; the last without such layers."""
    if not init_layers:
        return len(anchors) - 1
    return min(range(len(anchors)), key=lambda index: (abs(anchors[index] - init_layers[0]), index))
