"""Everything that decides the result of a training run. It is kept with the run, and resuming compares it."""

import math
from typing import Literal

import msgspec

from speculation.decisions.features import MaskRule
from speculation.pdm.config import HeadType, LayerType
from workers.shared.errors import ConfigError

KindName = Literal["pdm", "exit", "eagle3", "peagle"]
HEADS: frozenset[KindName] = frozenset({"eagle3", "peagle"})


class TrainingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `python -m speculation.training.train`."""

    target_name: str
    anchors: tuple[int, ...]
    kind: KindName = "pdm"
    layers: int = 2
    layer_type: LayerType = "target"
    head: HeadType = "own"  # trained, or the target's frozen rows
    init_layers: tuple[int, ...] = ()  # target layers that the tower starts from; none: random
    frozen_layers: int = 0  # the last so many of them stay as they are, and are not stored
    start: str | None = None  # checksum of the module whose weights are trained on
    init_projections: Literal["fit", "identity", "normal"] = "fit"
    draft_vocab: int = 0  # 0: the target's whole vocabulary
    stages: tuple[int, ...] = ()  # numbers of stages drawn from, each with the balanced split or a random one
    splits: tuple[tuple[int, ...], ...] = ()  # or these splits and no others
    uneven: float = 0.5  # share of random splits, with `stages`
    tokens_per_frame: tuple[int, ...] = (1,)  # widths of frames drawn from
    acceptance: float = 0.6  # decides how often each fill is drawn
    mask: MaskRule = MaskRule.CORRECTED
    unroll: int = 4  # of draft heads: drafts of a round, each from what the one before was made of
    decay: float = 0.8  # weight of each of them, in that of the one before
    positions: float = 1.0  # share of answer positions that count in a step
    max_length: int = 1024  # tokens; longer examples are cut
    batch_tokens: int = 4096  # in a step, prompt included
    steps: int = 1000
    learning_rate: float = 1e-3
    head_learning_rate: float = 1e-3
    schedule: Literal["cosine", "linear"] = "cosine"
    warmup: int = 50  # steps
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0  # gradient norm
    autocast: bool = False  # bfloat16 products; master weights stay float32
    held_out: float = 0.03  # share of prompts
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind in HEADS:
            if self.stages or self.splits:
                raise ConfigError(f"--stages and --split are not for --kind {self.kind}: a draft head knows no stages")
            if self.frozen_layers or self.layer_type != "target":
                raise ConfigError(f"--frozen-layers and --layer-type qwen3 are not for --kind {self.kind}")
        elif bool(self.stages) == bool(self.splits):
            raise ConfigError("give either --stages or --split: one of them, and not both")
        if self.stages and min(self.stages) < 2:
            raise ConfigError(f"--stages {min(self.stages)}: a draft module needs at least 2 stages")
        if any(len(split) < 2 for split in self.splits):
            raise ConfigError("--split: a draft module needs at least 2 stages")
        wide = self.tokens_per_frame != (1,)
        if not self.tokens_per_frame or min(self.tokens_per_frame) < 1:
            raise ConfigError(f"--tokens-per-frame {list(self.tokens_per_frame)}: give numbers of at least 1")
        if wide and (self.kind != "pdm" or self.mask is not MaskRule.CORRECTED):
            raise ConfigError("--tokens-per-frame other than 1 is for --kind pdm with --mask corrected")
        if self.init_layers and len(self.init_layers) != self.layers:
            raise ConfigError(f"--init-layers names {len(self.init_layers)} layers, but --layers is {self.layers}")
        if self.init_layers and self.layer_type != "target":
            raise ConfigError("--init-layers needs --layer-type target: the target has no weights for another layer")
        if not 0 <= self.frozen_layers <= len(self.init_layers):
            raise ConfigError(
                f"--frozen-layers {self.frozen_layers}: only layers that start as the target's can stay so"
            )
        if not 0 < self.positions <= 1 or not 0 <= self.acceptance <= 1 or not 0 <= self.held_out < 1:
            raise ConfigError("--positions, --acceptance and --held-out are shares between 0 and 1")
        for flag, value, least in (
            ("layers", self.layers, 0 if self.kind == "exit" else 1),
            ("draft-vocab", self.draft_vocab, 0),
            ("max-length", self.max_length, 2),
            ("batch-tokens", self.batch_tokens, 1),
            ("unroll", self.unroll, 1),
            ("steps", self.steps, 1),
            ("warmup", self.warmup, 0),
        ):
            if value < least:
                raise ConfigError(f"--{flag} {value}: give at least {least}")
        for flag, rate in (("lr", self.learning_rate), ("head-lr", self.head_learning_rate), ("clip", self.clip)):
            if not 0 < rate < math.inf:
                raise ConfigError(f"--{flag} {rate:g}: give a number above 0")
        if not 0 < self.decay <= 1:
            raise ConfigError(f"--decay {self.decay:g}: give a number above 0, and at most 1")
        if not 0 <= self.weight_decay < math.inf or not 0 <= self.uneven <= 1:
            raise ConfigError("--weight-decay is a number of at least 0, and --uneven a share between 0 and 1")


def rate_factor(settings: TrainingSettings, step: int) -> float:
    """Learning rate of `step` (from 0) as a share of the peak: linear warm-up, then down to 0 at the last step."""
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.5 * (1 + math.cos(math.pi * done)) if settings.schedule == "cosine" else 1 - done
