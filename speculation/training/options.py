"""Options of `echelon train` and `echelon distill`."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from speculation.decisions.features import MaskRule
from speculation.pdm.config import read_config
from speculation.training.settings import KindName, TrainingSettings
from workers.shared.errors import ConfigError
from workers.shared.options.declared import AtLeastOne, NotNegative, Share, about
from workers.shared.options.sources import Program

_RUN, _MODULE, _PIPELINE, _TRAINING = "Run", "Module", "Pipelines it is trained for", "Training"
_DISTILLING = "Distilling"
_LAYERS: dict[KindName, int] = {"pdm": 2, "exit": 1, "eagle3": 1, "peagle": 2}  # unless said


class TrainOptions(Struct, frozen=True, kw_only=True):
    """The command line."""

    model: Annotated[Path, about(_RUN, "Prepared model folder of the target", place=True)]
    data: Annotated[
        tuple[Path, ...], about(_RUN, "Data files, or folders of .jsonl and .jsonl.gz files", metavar="PATH")
    ]
    out: Annotated[Path, about(_RUN, "Folder of the run and of what is trained", metavar="DIR")]
    kind: Annotated[
        KindName,
        about(
            _RUN,
            "What is trained, for the drafter of the same name: a draft module (pdm), an exit head of PPSD (exit), or "
            "a draft head (eagle3, peagle)",
        ),
    ] = "pdm"
    name: Annotated[
        str | None, about(_RUN, "Name of the target", default="what its config.json says, or the folder's name")
    ] = None
    device: Annotated[str, about(_RUN, "cpu or cuda")] = "cpu"
    cache: Annotated[
        Path | None,
        about(_RUN, "Folder for the target's hidden states; without it the target runs in every step", metavar="DIR"),
    ] = None
    teacher_dtype: Annotated[Literal["float32", "bfloat16"], about(_RUN, "Of the target")] = "float32"
    save_every: Annotated[AtLeastOne, about(_RUN, "Steps between two checkpoints")] = 100
    validate_every: Annotated[AtLeastOne, about(_RUN, "Steps between two validations")] = 200
    validation_examples: Annotated[AtLeastOne, about(_RUN, "Examples of a validation")] = 48
    layers: Annotated[
        int | None,
        about(_MODULE, "Decoder layers; an exit head may have 0", default="2; of exit and eagle3 1"),
    ] = None
    layer_type: Annotated[Literal["target", "qwen3"], about(_MODULE, "Of its layers")] = "target"
    head: Annotated[Literal["own", "target"], about(_MODULE, "Trained draft head, or the target's frozen rows")] = "own"
    anchors: Annotated[
        tuple[int, ...],
        about(
            _MODULE,
            "Hidden-state indices, such as 0,10,19,24,29. Of an exit head those behind which stage 0 may end: it reads "
            "them up to the last that stage 0 has",
            default="of a draft head of L layers 2,L/2,L-3; else it must be given",
        ),
    ] = ()
    unroll: Annotated[AtLeastOne, about(_MODULE, "Of a draft head: drafts of a round")] = 4
    decay: Annotated[float, about(_MODULE, "Of a draft head: weight of a draft, in that of the one before")] = 0.8
    init_layers: Annotated[str, about(_MODULE, "Target layers to start from, such as 28,29; 'last' or 'none'")] = "last"
    start: Annotated[
        Path | None,
        about(_MODULE, "Folder of a draft module of the same shape, whose weights are trained on", metavar="DIR"),
    ] = None
    frozen_layers: Annotated[int, about(_MODULE, "Last layers that stay the target's, and are not stored")] = 0
    init_projections: Annotated[Literal["fit", "identity", "normal"], about(_MODULE, "How projections start")] = "fit"
    draft_vocab: Annotated[int, about(_MODULE, "Size of the draft vocabulary, built from the data; 0: all tokens")] = 0
    stages: Annotated[tuple[int, ...], about(_PIPELINE, "Numbers of stages, such as 2,3,5,10")] = ()
    split: Annotated[
        tuple[tuple[int, ...], ...], about(_PIPELINE, "A fixed split, instead of --stages; may be given several times")
    ] = ()
    uneven: Annotated[float, about(_PIPELINE, "Share of random splits, with --stages")] = 0.5
    tokens_per_frame: Annotated[
        tuple[int, ...], about(_PIPELINE, "Tokens of a frame, of a draft module, such as 1,2,4; drawn for each example")
    ] = (1,)
    acceptance: Annotated[float, about(_PIPELINE, "Expected acceptance; decides how often each fill is drawn")] = 0.6
    mask: Annotated[
        MaskRule,
        about(
            _PIPELINE,
            "What rows see while the pipeline is not full: as at inference, or by the authors' rule. Only that rule: "
            "every depth keeps a row of its own, where the authors' training shares one among the depths of a type",
        ),
    ] = MaskRule.CORRECTED
    positions: Annotated[float, about(_TRAINING, "Share of answer positions that count in a step")] = 1.0
    max_length: Annotated[int, about(_TRAINING, "Tokens of an example; longer ones are cut")] = 1024
    batch_tokens: Annotated[int, about(_TRAINING, "Tokens in a step, prompts included")] = 4096
    steps: Annotated[int, about(_TRAINING, "Steps in all")] = 1000
    lr: Annotated[float, about(_TRAINING, "Highest learning rate")] = 1e-3
    head_lr: Annotated[float | None, about(_TRAINING, "That of the head", default="--lr")] = None
    schedule: Annotated[Literal["cosine", "linear"], about(_TRAINING, "How the learning rate falls")] = "cosine"
    warmup: Annotated[int, about(_TRAINING, "Steps in which it rises first")] = 50
    weight_decay: Annotated[float, about(_TRAINING, "Of AdamW")] = 0.0
    clip: Annotated[float, about(_TRAINING, "Norm to which gradients are clipped")] = 1.0
    autocast: Annotated[bool, about(_TRAINING, "bfloat16 products; master weights stay float32")] = False
    held_out: Annotated[Share, about(_TRAINING, "Share of prompts kept for validation; 0: no validation")] = 0.03
    seed: Annotated[int, about(_TRAINING, "Of everything that is drawn")] = 0


TRAIN_PROGRAM = Program(
    "echelon train",
    "Trains a draft module, an exit head or a draft head on a target's own answers. Run it again to go on after an "
    "interruption.",
    TrainOptions,
)


class DistillOptions(Struct, frozen=True, kw_only=True):
    """The command line."""

    model: Annotated[Path, about(_DISTILLING, "Prepared model folder of the target", place=True)]
    out: Annotated[Path, about(_DISTILLING, "Folder of the data", metavar="DIR")]
    output_name: Annotated[str, about(_DISTILLING, "Name of the .jsonl file in it")] = "answers"
    prompts: Annotated[
        Path | None,
        about(_DISTILLING, ".jsonl file with a field prompt, or a text file with one prompt a line", metavar="FILE"),
    ] = None
    count: Annotated[AtLeastOne, about(_DISTILLING, "Answers to write")] = 1000
    temperature: Annotated[
        tuple[Annotated[float, Meta(ge=0)], ...], about(_DISTILLING, "Each prompt is answered once at each")
    ] = (0.0, 1.0)
    batch: Annotated[AtLeastOne, about(_DISTILLING, "Prompts at a time")] = 16
    max_tokens: Annotated[AtLeastOne, about(_DISTILLING, "Of an answer")] = 320
    top_k: Annotated[NotNegative, about(_DISTILLING, "Sample from this many tokens; 0: from all")] = 0
    dtype: Annotated[Literal["float32", "bfloat16"], about(_DISTILLING, "Of the target")] = "float32"
    device: Annotated[str, about(_DISTILLING, "cpu or cuda")] = "cpu"
    seed: Annotated[int, about(_DISTILLING, "Of everything that is drawn")] = 0


DISTILL_PROGRAM = Program(
    "echelon distill",
    "Writes a model's own answers, to prompts from a file or to instructions that it makes up itself. Run it again to "
    "go on after an interruption.",
    DistillOptions,
)


def init_layers(text: str, layers: int, target_layers: int, layer_type: str) -> tuple[int, ...]:
    """The target layers that `--init-layers` names; raises `ConfigError` where they are no numbers."""
    if text == "none" or (text == "last" and layer_type != "target"):
        return ()
    if text == "last":
        return tuple(range(target_layers - layers, target_layers))
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ConfigError(f"--init-layers {text!r}: give numbers such as 28,29, or 'last', or 'none'")
    chosen = tuple(map(int, parts))
    if max(chosen) >= target_layers:
        raise ConfigError(f"--init-layers {text}: the target has layers 0..{target_layers - 1}")
    return chosen


def settings_of(options: TrainOptions, target_name: str, target_layers: int) -> TrainingSettings:
    """The settings that decide the result; raises `ConfigError` with the name of the option."""
    layers = _LAYERS[options.kind] if options.layers is None else options.layers
    return TrainingSettings(
        target_name=target_name,
        anchors=options.anchors,
        kind=options.kind,
        layers=layers,
        layer_type=options.layer_type,
        head=options.head,
        init_layers=init_layers(options.init_layers, layers, target_layers, options.layer_type),
        start=None if options.start is None else read_config(options.start).sha256,
        frozen_layers=options.frozen_layers,
        init_projections=options.init_projections,
        draft_vocab=options.draft_vocab,
        stages=options.stages,
        splits=options.split,
        unroll=options.unroll,
        decay=options.decay,
        uneven=options.uneven,
        tokens_per_frame=options.tokens_per_frame,
        acceptance=options.acceptance,
        mask=options.mask,
        positions=options.positions,
        max_length=options.max_length,
        batch_tokens=options.batch_tokens,
        steps=options.steps,
        learning_rate=options.lr,
        head_learning_rate=options.lr if options.head_lr is None else options.head_lr,
        schedule=options.schedule,
        warmup=options.warmup,
        weight_decay=options.weight_decay,
        clip=options.clip,
        autocast=options.autocast,
        held_out=options.held_out,
        seed=options.seed,
    )
