"""Draft modules and exit heads: rows of anchors, a tower, a draft head."""

import random
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch

from speculation.decisions.features import RowRule, check_anchors
from speculation.pdm.checkpoint import save_module, take_weights
from speculation.pdm.config import ModuleConfig
from speculation.pdm.module import DraftModule
from speculation.pdm.target import read_final_norm, read_head, read_target_config
from speculation.pdm.tower import layer_kinds
from speculation.pdm.vocabulary import most_frequent
from speculation.training.examples.data import Example, answer_counts
from speculation.training.examples.draws import SplitDraw, draw_chains
from speculation.training.examples.layout import PackedRows
from speculation.training.kinds.initial import fit_projections, initialise, wanted_state
from speculation.training.kinds.validation import validate
from speculation.training.loss import DraftLoss, Score
from speculation.training.settings import TrainingSettings
from speculation.training.teacher import Teacher
from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import layer_bytes


def draft_vocabulary(settings: TrainingSettings, model: Path, examples: Sequence[Example]) -> tuple[int, ...] | None:
    """The target's ids that can be drafted: those most frequent in the answers that are trained on; None: all."""
    if not settings.draft_vocab:
        return None
    target = read_target_config(model)
    trained = [example for example in examples if not example.held_out]
    end = target.eos_token_id
    always = [] if end is None else [end] if isinstance(end, int) else list(end)
    return most_frequent(answer_counts(trained), settings.draft_vocab, always, target.vocab_size)


class ModuleLearner:
    """Trains a draft module for drafts of any fill of a pipeline, or an exit head for its exits."""

    def __init__(
        self, settings: TrainingSettings, model: Path, examples: Sequence[Example], device: torch.device, rows: RowRule
    ) -> None:
        """The untrained module of the target in the model folder `model`.

        Raises `ConfigError` where anchors, layers or splits do not fit the target.
        """
        self._settings = settings
        self._examples = examples
        self._device = device
        target = read_target_config(model)
        if not settings.anchors:
            raise ConfigError(f"--kind {settings.kind} needs --anchors: hidden-state indices, such as 0,10,19,24,29")
        check_anchors(settings.anchors, target.num_hidden_layers)
        self._splits = SplitDraw(
            settings.anchors,
            *layer_bytes(model),
            stages=settings.stages,
            splits=settings.splits,
            uneven=settings.uneven,
            rule=rows,
        )
        config = ModuleConfig(
            target=settings.target_name,
            target_layers=target.num_hidden_layers,
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            anchors=settings.anchors,
            layers=settings.layers,
            rows=rows,
            layer_type=settings.layer_type,
            head=settings.head,
            frozen_layers=settings.init_layers[settings.layers - settings.frozen_layers :],
            layer_kinds=layer_kinds(target, settings.init_layers),
            draft_token_ids=draft_vocabulary(settings, model, examples),
            stages=tuple(sorted({features.stages for features in self._splits.usual})),
        )
        module = DraftModule(config, target, read_final_norm(model, target))
        initialise(
            module,
            model,
            init_layers=settings.init_layers,
            projections=settings.init_projections,
            seed=settings.seed,
        )
        self.network: DraftModule = module.to(device)
        self._wanted = wanted_state(settings.anchors, settings.layers, settings.init_layers, target.num_hidden_layers)
        self._loss = DraftLoss(read_head(model).float().to(device), module.draft_to_target, module.softcap)

    @property
    def states(self) -> tuple[int, ...]:
        """The anchors, and what projections are fitted to."""
        anchors = self._settings.anchors
        fits = self._settings.init_projections == "fit" and self._wanted not in anchors
        return (*anchors, self._wanted) if fits else anchors

    def start(self, folder: Path) -> None:
        """See `Learner`."""
        take_weights(self.network, folder)

    def begin(self, teacher: Teacher, *, fresh: bool) -> None:
        """See `Learner`."""
        self._teacher = teacher
        if fresh and self._settings.init_projections == "fit":
            fit_projections(self.network, teacher, self._examples, self._wanted)

    def learn(self, rng: random.Random, batch: Sequence[int]) -> Score:
        """See `Learner`; a split and a width of frames are drawn for each example, and an origin for each frame."""
        settings = self._settings
        chains = [
            draw_chains(
                rng,
                self._splits.draw(rng),
                self._examples[index].newest,
                share=settings.positions,
                acceptance=settings.acceptance,
                rule=settings.mask,
                width=rng.choice(settings.tokens_per_frame),
            )
            for index in batch
        ]
        used = [(index, drawn) for index, drawn in zip(batch, chains, strict=True) if drawn]
        if not used:
            return Score()
        indices = [index for index, _ in used]
        offsets = [0, *accumulate(len(self._examples[index]) for index in indices)][:-1]
        targets = self._teacher.targets(indices)
        packed = PackedRows([drawn for _, drawn in used], offsets, self._device)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=settings.autocast):
            hidden = packed.forward(self.network, targets.anchors)
            return self._loss.backward(self.network, hidden, targets, packed.newest)

    def validate(self, indices: Sequence[int]) -> dict[str, dict[str, float]]:
        """See `validation.validate`."""
        return validate(
            self.network,
            self._loss,
            self._teacher,
            self._examples,
            indices,
            self._splits.usual,
            widths=self._settings.tokens_per_frame,
            autocast=self._settings.autocast,
        )

    def save(self, folder: Path) -> None:
        """A draft module folder."""
        save_module(self.network, folder)
