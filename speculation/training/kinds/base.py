"""What the trainer asks of whatever it trains."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import nn

from speculation.training.loss import Score
from speculation.training.teacher import Teacher


class Learner(Protocol):
    """A network that learns to draft, and what is to be known of its kind.

    Everything that is drawn at random comes from the generator it is given, so that a step can be repeated.
    """

    @property
    def network(self) -> nn.Module:
        """Float32. Its state dict is kept with the run; parameters that need a gradient are trained.

        Those of its `lm_head` have a learning rate of their own.
        """

    @property
    def states(self) -> tuple[int, ...]:
        """The target's hidden states that it needs, by index, in the order in which the teacher is to give them."""

    def start(self, folder: Path) -> None:
        """Takes the weights of what was trained before; raises `ConfigError` where they do not fit."""

    def begin(self, teacher: Teacher, *, fresh: bool) -> None:
        """Learns from `teacher` from now on; `fresh`: weights that depend on it are to be made first."""

    def learn(self, rng: random.Random, batch: Sequence[int]) -> Score:
        """Adds the gradients of the mean loss over some examples to all parameters."""

    def validate(self, indices: Sequence[int]) -> dict[str, dict[str, float]]:
        """Mean scores over some examples, by what they are of."""

    def save(self, folder: Path) -> None:
        """Writes the checkpoint that is served from."""
