"""`python -m speculation.training.train MODEL --data DIR --out DIR ...`: trains a draft module, or goes on with it."""

import argparse
import hashlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import msgspec
import torch
from transformers import AutoTokenizer

from speculation.decisions.features import check_anchors
from speculation.pdm.config import ModuleConfig
from speculation.pdm.module import DraftModule
from speculation.pdm.target import read_head, read_target_config, read_tensor, target_name
from speculation.pdm.vocabulary import most_frequent
from speculation.training.examples.data import Example, answer_counts, data_files, data_hash, load_examples
from speculation.training.examples.draws import SplitDraw
from speculation.training.initial import fit_projections, initialise
from speculation.training.options import build_parser, settings_of
from speculation.training.parallel import World, local_device
from speculation.training.provenance import (
    Provenance,
    command_line,
    git_commit,
    package_versions,
    python_version,
    write_provenance,
)
from speculation.training.settings import Settings
from speculation.training.teacher import LiveTeacher, Teacher, load_target
from speculation.training.teacher_cache import CachedTeacher
from speculation.training.trainer import CHECKPOINT, Cadence, Trainer
from workers.shared.errors import ConfigError
from workers.shared.model_files.tensor_sizes import EMBEDDING, FINAL_NORM, layer_bytes


class Stop:
    """Set by a signal, so that the run ends after its current step with everything saved."""

    def __init__(self) -> None:
        self._asked = False

    def install(self) -> None:
        """Listens for SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

    def __call__(self) -> bool:
        return self._asked


def build_module(settings: Settings, model: Path, examples: Sequence[Example], stages: tuple[int, ...]) -> DraftModule:
    """The untrained module, float32 on the CPU."""
    target = read_target_config(model)
    vocabulary = None
    if settings.draft_vocab:
        trained = [example for example in examples if not example.held_out]
        end = target.eos_token_id
        always = [] if end is None else [end] if isinstance(end, int) else list(end)
        vocabulary = most_frequent(answer_counts(trained), settings.draft_vocab, always, target.vocab_size)
    config = ModuleConfig(
        target=settings.target_name,
        target_layers=target.num_hidden_layers,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        anchors=settings.anchors,
        layers=settings.layers,
        layer_type=settings.layer_type,
        head=settings.head,
        frozen_layers=settings.init_layers[settings.layers - settings.frozen_layers :],
        draft_token_ids=vocabulary,
        stages=stages,
    )
    module = DraftModule(config, target, read_tensor(model, FINAL_NORM).float())
    initialise(
        module,
        model,
        init_layers=settings.init_layers,
        projections=settings.init_projections,
        seed=settings.seed,
    )
    return module


def build_teacher(
    options: argparse.Namespace,
    settings: Settings,
    examples: Sequence[Example],
    digest: str,
    device: torch.device,
    world: World,
) -> Teacher:
    """The target itself, or its cached answers, which are computed first where they are missing."""
    dtype = getattr(torch, options.teacher_dtype)
    if options.cache is None:
        return LiveTeacher(load_target(options.model, dtype, device), settings.anchors, examples)
    made_of = f"{settings.target_name} {settings.anchors} {settings.max_length} {options.teacher_dtype} {digest}"
    cache = CachedTeacher(
        options.cache,
        hashlib.sha256(made_of.encode()).hexdigest(),
        examples,
        len(settings.anchors),
        read_tensor(options.model, EMBEDDING).float().to(device),
    )
    if world.rank == 0 and not cache.complete:
        cache.build(LiveTeacher(load_target(options.model, dtype, device), settings.anchors, examples))
    world.wait()
    return cache


def train(options: argparse.Namespace, arguments: Sequence[str], should_stop: Stop) -> bool:
    """Runs the training that the command line asks for; returns whether it is complete."""
    name = options.name or target_name(options.model)
    target = read_target_config(options.model)
    settings = settings_of(options, name, target.num_hidden_layers)
    check_anchors(settings.anchors, target.num_hidden_layers)
    device = local_device(options.device)
    world = World.join(device)
    files = [file for path in options.data for file in data_files(path)]
    tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    examples = load_examples(files, tokenizer, settings.max_length, settings.held_out)
    splits = SplitDraw(
        settings.anchors,
        *layer_bytes(options.model),
        stages=settings.stages,
        splits=settings.splits,
        uneven=settings.uneven,
    )
    stages = tuple(sorted({features.stages for features in splits.usual}))
    options.out.mkdir(parents=True, exist_ok=True)
    if world.rank == 0:
        (options.out / "settings.json").write_bytes(msgspec.json.format(msgspec.json.encode(settings)) + b"\n")
        write_provenance(
            Provenance(
                command=command_line("speculation.training.train", arguments),
                git=git_commit(),
                python=python_version(),
                versions=package_versions(),
                target=name,
                data={file.name: data_hash([file]) for file in files},
                examples=len(examples),
                answer_tokens=answer_counts(examples).total(),
            ),
            options.out,
        )
    module = build_module(settings, options.model, examples, stages).to(device)
    teacher = build_teacher(options, settings, examples, data_hash(files), device, world)
    if settings.init_projections == "fit" and not (options.out / CHECKPOINT).exists():
        fit_projections(module, teacher, examples, settings.init_layers)
    trainer = Trainer(
        settings,
        module,
        teacher,
        read_head(options.model).float().to(device),
        examples,
        splits,
        options.out,
        cadence=Cadence(
            save=options.save_every,
            validate=options.validate_every,
            validation_examples=options.validation_examples,
        ),
        world=world,
    )
    trainer.resume()
    complete = trainer.fit(should_stop)
    world.leave()
    return complete


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: complete; 1: bad input; 3: stopped by a signal, run again to go on."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = build_parser().parse_args(given)
    should_stop = Stop()
    should_stop.install()
    try:
        complete = train(options, given, should_stop)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0 if complete else 3


if __name__ == "__main__":
    sys.exit(main())
