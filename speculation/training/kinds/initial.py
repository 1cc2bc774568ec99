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
    (`fit_projections` improves on it for the types that do not reach it.)
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


def wanted_state(anchors: Sequence[int], layers: int, init_layers: Sequence[int], target_layers: int) -> int:
    """Index of the hidden state that projections should predict for a tower of so many `layers`.

    It is what the first of the target's layers in it reads, or, of an exit head without layers, the final norm. A tower
    of random layers may read the last anchor as well as any.
    """
    if layers == 0:
        return target_layers
    return init_layers[0] if init_layers else anchors[-1]


@torch.no_grad()
def fit_projections(module: DraftModule, teacher: Teacher, examples: Sequence[Example], wanted: int) -> None:
    """Makes projections the best linear guess of the hidden state `wanted`, but of types that own it already.

    The teacher gives it behind the module's anchors, unless it is one of them.
    """
    hidden, anchors = module.config.hidden_size, module.config.anchors
    column = anchors.index(wanted) if wanted in anchors else len(anchors)  # of what is guessed, from those before it
    fit = Ridge(teacher, examples, range(column), column)
    for kind in range(column):
        _projection_weights(module)[kind].copy_(fit.solve((kind + 1) * hidden))


class Ridge:
    """The best linear guess of one hidden state from others, over some training examples.

    Each token is weighted such that it counts by direction, since a norm follows. The first token is left out: in many
    models its hidden states are hundreds of times larger.
    """

    def __init__(self, teacher: Teacher, examples: Sequence[Example], known: Sequence[int], wanted: int) -> None:
        """`known` and `wanted` are places among the hidden states that the teacher gives."""
        sums: tuple[Tensor, Tensor] | None = None
        tokens = 0
        for index, example in enumerate(examples):
            if example.held_out:
                continue
            states = teacher.targets([index]).anchors[1:].float()
            scaled = states / states[:, wanted].norm(dim=-1).clamp(min=1e-6)[:, None, None]
            seen = scaled[:, list(known)].flatten(1)
            found = seen.T @ seen, seen.T @ scaled[:, wanted]
            sums = found if sums is None else (sums[0] + found[0], sums[1] + found[1])
            tokens += len(states)
            if tokens >= _FIT_TOKENS:
                break
        assert sums is not None, "some example is trained on"
        self._gram, self._products = sums

    def solve(self, size: int) -> Tensor:
        """The matrix `[H, size]` that guesses from the first `size` numbers of what is known."""
        seen = self._gram[:size, :size]
        ridge = _RIDGE * seen.diagonal().mean() * torch.eye(size, device=seen.device)
        solved: Tensor = torch.linalg.solve(seen + ridge, self._products[:size])
        return solved.T


def _projection_weights(module: DraftModule) -> list[Tensor]:
    return [projection.weight for projection in module.aggr_projs]  # type: ignore[misc]


def _nearest(anchors: Sequence[int], init_layers: tuple[int, ...]) -> int:
    """Index of the anchor nearest to what the first of `init_layers` reads; the last without such layers."""
    if not init_layers:
        return len(anchors) - 1
    return min(range(len(anchors)), key=lambda index: (abs(anchors[index] - init_layers[0]), index))
