"""Command line of `python -m speculation.training.train`."""

import argparse
from pathlib import Path

from speculation.decisions.features import MaskRule
from speculation.training.arguments import numbers, whole
from speculation.training.settings import Settings
from workers.shared.errors import ConfigError


def build_parser() -> argparse.ArgumentParser:
    """All options; those that decide the result have the defaults of `Settings`."""
    parser = argparse.ArgumentParser(
        prog="python -m speculation.training.train",
        description="Trains a draft module on a target's own answers. Run it again to go on after an interruption.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", type=Path, help="prepared model folder of the target")
    add("--data", type=Path, required=True, nargs="+", help="data files, or folders of .jsonl and .jsonl.gz files")
    add("--out", type=Path, required=True, help="folder of the run and of the module")
    add("--name", help="name of the target (default: what its config.json says, or the folder's name)")
    add("--layers", type=int, default=2, help="decoder layers of the module")
    add("--layer-type", choices=("target", "qwen3"), default="target")
    add("--head", choices=("own", "target"), default="own", help="trained draft head, or the target's frozen rows")
    add("--anchors", type=numbers, required=True, help="hidden-state indices, such as 0,10,19,24,29")
    add("--init-layers", help="target layers to start from, such as 28,29; 'last' (default) or 'none'", default="last")
    add("--frozen-layers", type=int, default=0, help="last layers that stay the target's, and are not stored")
    add("--init-projections", choices=("fit", "identity", "normal"), default="fit")
    add("--draft-vocab", type=int, default=0, help="size of the draft vocabulary, built from the data; 0: all tokens")
    add("--stages", type=numbers, default=(), help="numbers of stages to train for, such as 2,3,5,10")
    add("--split", type=numbers, action="append", default=[], help="a fixed split, instead of --stages; repeatable")
    add("--uneven", type=float, default=0.5, help="share of random splits, with --stages")
    add("--acceptance", type=float, default=0.6, help="expected acceptance; decides how often each fill is drawn")
    add(
        "--mask",
        choices=[rule.value for rule in MaskRule],
        default=MaskRule.CORRECTED.value,
        help="what rows see while the pipeline is not full: as at inference, or by the authors' rule. Only that rule: "
        "every depth keeps a row of its own, where the authors' training shares one among the depths of a type",
    )
    add("--positions", type=float, default=1.0, help="share of answer positions that count in a step")
    add("--max-length", type=int, default=1024)
    add("--batch-tokens", type=int, default=4096)
    add("--steps", type=int, default=1000)
    add("--lr", type=float, default=1e-3)
    add("--head-lr", type=float, help="default: --lr")
    add("--schedule", choices=("cosine", "linear"), default="cosine")
    add("--warmup", type=int, default=50)
    add("--weight-decay", type=float, default=0.0)
    add("--clip", type=float, default=1.0)
    add("--autocast", action="store_true", help="bfloat16 products; master weights stay float32")
    add("--held-out", type=float, default=0.03, help="share of prompts kept for validation; 0: no validation")
    add("--seed", type=int, default=0)
    add("--device", default="cpu")
    add("--cache", type=Path, help="folder for the target's hidden states; without it the target runs in every step")
    add("--teacher-dtype", choices=("float32", "bfloat16"), default="float32")
    add("--save-every", type=whole(1), default=100)
    add("--validate-every", type=whole(1), default=200)
    add("--validation-examples", type=whole(1), default=48)
    return parser


def init_layers(text: str, layers: int, target_layers: int, layer_type: str) -> tuple[int, ...]:
    """The target layers that `--init-layers` names; raises `ConfigError` where they are no numbers."""
    if text == "none" or (text == "last" and layer_type != "target"):
        return ()
    if text == "last":
        return tuple(range(target_layers - layers, target_layers))
    try:
        return numbers(text)
    except argparse.ArgumentTypeError:
        raise ConfigError(f"--init-layers {text!r}: give numbers such as 28,29, or 'last', or 'none'") from None


def settings_of(options: argparse.Namespace, target_name: str, target_layers: int) -> Settings:
    """The settings that decide the result; raises `ConfigError` with the name of the option."""
    return Settings(
        target_name=target_name,
        anchors=options.anchors,
        layers=options.layers,
        layer_type=options.layer_type,
        head=options.head,
        init_layers=init_layers(options.init_layers, options.layers, target_layers, options.layer_type),
        frozen_layers=options.frozen_layers,
        init_projections=options.init_projections,
        draft_vocab=options.draft_vocab,
        stages=options.stages,
        splits=tuple(options.split),
        uneven=options.uneven,
        acceptance=options.acceptance,
        mask=MaskRule(options.mask),
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
