"""The training loop: every step is a function of the settings, the data and the step number."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import nn
from tqdm import tqdm

from speculation.training.examples.batches import batches
from speculation.training.examples.data import Example
from speculation.training.kinds.base import Learner
from speculation.training.loss import Score
from speculation.training.parallel import World
from speculation.training.run_folder import RunFolder, TrainingState
from speculation.training.settings import TrainingSettings, rate_factor
from workers.shared.errors import ConfigError

_HEAD = "lm_head."


@dataclass(frozen=True)
class Cadence:
    """How often things happen that do not change the result; in steps."""

    save: int = 100
    validate: int = 200
    log: int = 10
    validation_examples: int = 48


class Trainer:
    """Trains one network into one folder."""

    def __init__(
        self,
        settings: TrainingSettings,
        learner: Learner,
        examples: Sequence[Example],
        folder: RunFolder,
        *,
        device: torch.device,
        cadence: Cadence,
        world: World,
    ) -> None:
        """`learner` has begun, with a teacher that numbers the `examples` in the same way."""
        self._settings = settings
        self._learner = learner
        self._examples = examples
        self._folder = folder
        self._cadence = cadence
        self._world = world
        self._device = device
        self._train = [index for index, example in enumerate(examples) if not example.held_out]
        held_out = [index for index, example in enumerate(examples) if example.held_out]
        stride = max(1, len(held_out) // cadence.validation_examples)
        self._held_out = held_out[::stride][: cadence.validation_examples]
        self._optimizer = _optimizer(settings, learner.network)
        self.step = 0

    def resume(self, checkpoint: TrainingState) -> None:
        """Goes on from an earlier run of the same settings."""
        self._learner.network.load_state_dict(checkpoint.module)
        self._optimizer.load_state_dict(checkpoint.optimizer)
        self.step = checkpoint.step

    def fit(self, should_stop: Callable[[], bool]) -> bool:
        """Trains up to the last step, or until `should_stop`; saves at the end. Returns whether it is complete.

        Raises `ConfigError`, without saving, where the numbers overflow.
        """
        settings, world = self._settings, self._world
        order = self._batches()
        recent = Score()
        tokens = 0
        last_loss = ""
        with tqdm(total=settings.steps, initial=self.step, unit="step", disable=world.rank > 0) as bar:
            while self.step < settings.steps and not world.any(should_stop(), self._device):
                batch = next(order)
                recent.add(self._train_step(batch))
                tokens += sum(len(self._examples[index]) for index in batch) * world.size
                self.step += 1
                if self.step % self._cadence.log == 0:
                    last_loss = f"{recent.means()['loss']:.3f}"
                    self._record({"step": self.step, "train": recent.means()})
                    recent = Score()
                if self._held_out and (self.step % self._cadence.validate == 0 or self.step == settings.steps):
                    tqdm.write(self._validate())
                if self.step % self._cadence.save == 0:
                    self._save()
                bar.update()
                elapsed = bar.format_dict["elapsed"]
                bar.set_postfix_str(f"loss {last_loss}, {tokens / max(elapsed, 1e-9):.0f} tok/s")
        self._save()
        return self.step == settings.steps

    def _batches(self) -> Iterator[list[int]]:
        lengths = [len(self._examples[index]) for index in self._train]
        order = batches(lengths, self._settings.batch_tokens, self._settings.seed)
        mine = islice(order, self.step * self._world.size + self._world.rank, None, self._world.size)
        return ([self._train[index] for index in batch] for batch in mine)

    def _train_step(self, batch: Sequence[int]) -> Score:
        settings = self._settings
        score = self._learner.learn(random.Random(f"step {settings.seed} {self.step} {self._world.rank}"), batch)
        parameters = [parameter for parameter in self._learner.network.parameters() if parameter.requires_grad]
        self._world.average_gradients(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
        if not norm.isfinite():
            raise ConfigError(
                f"step {self.step + 1}: the gradient is no number any more; the last save is as it was. "
                "Train anew with a lower --lr"
            )
        factor = rate_factor(settings, self.step)
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return score

    def _validate(self) -> str:
        scores = self._learner.validate(self._held_out)
        self._record({"step": self.step, "validation": scores})
        summary = ", ".join(f"{name} {values['agreement']:.3f}" for name, values in scores.items())
        return f"step {self.step}: agreement {summary}"

    def _record(self, entry: dict[str, object]) -> None:
        if self._world.rank == 0:
            self._folder.record(entry)

    def _save(self) -> None:
        if self._world.rank == 0:
            self._folder.save(self._learner, self._optimizer, self.step)


def _optimizer(settings: TrainingSettings, network: nn.Module) -> torch.optim.Optimizer:
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    head = [parameter for name, parameter in trained if name.startswith(_HEAD)]
    others = [parameter for name, parameter in trained if not name.startswith(_HEAD)]
    rated = ((others, settings.learning_rate), (head, settings.head_learning_rate))
    groups = [{"params": parameters, "lr": 0.0, "peak": peak} for parameters, peak in rated if parameters]
    return torch.optim.AdamW(groups, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)
