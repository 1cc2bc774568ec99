"""`python -m speculation.training.train MODEL --data DIR --out DIR ...`: trains a draft module, or goes on with it."""

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from speculation.decisions.features import check_anchors
from speculation.pdm.config import ModuleConfig
from speculation.pdm.module import DraftModule
from speculation.pdm.target import read_embedding, read_final_norm, read_head, read_target_config, target_name
from speculation.pdm.tower import layer_kinds
from speculation.pdm.vocabulary import most_frequent
from speculation.training.examples.data import (
    Example,
    answer_counts,
    data_files,
    data_hash,
    examples_hash,
    load_examples,
)
from speculation.training.examples.draws import SplitDraw
from speculation.training.initial import fit_projections, initialise
from speculation.training.interruption import EXIT_INTERRUPTED, Interrupted, StopSignals
from speculation.training.options import TRAIN_PROGRAM, TrainOptions, settings_of
from speculation.training.parallel import World, local_device
from speculation.training.provenance import (
    TrainingProvenance,
    command_line,
    git_commit,
    package_versions,
    python_version,
)
from speculation.training.run_folder import Identity, RunFolder
from speculation.training.settings import TrainingSettings
from speculation.training.teacher import LiveTeacher, Teacher, load_target, load_tokenizer
from speculation.training.teacher_cache import CachedTeacher
from speculation.training.trainer import Cadence, Trainer
from workers.shared.errors import ConfigError
from workers.shared.model_files.digest import read_digest
from workers.shared.model_files.tensor_sizes import layer_bytes
from workers.shared.options.sources import read


def build_module(
    settings: TrainingSettings, model: Path, examples: Sequence[Example], stages: tuple[int, ...]
) -> DraftModule:
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
        layer_kinds=layer_kinds(target, settings.init_layers),
        draft_token_ids=vocabulary,
        stages=stages,
    )
    module = DraftModule(config, target, read_final_norm(model, target))
    initialise(
        module,
        model,
        init_layers=settings.init_layers,
        projections=settings.init_projections,
        seed=settings.seed,
    )
    return module


def build_teacher(
    options: TrainOptions,
    identity: Identity,
    examples: Sequence[Example],
    device: torch.device,
    world: World,
) -> Teacher:
    """The target itself, or its cached answers, which are computed first where they are missing."""
    settings, dtype = identity.settings, getattr(torch, options.teacher_dtype)
    if options.cache is None:
        return LiveTeacher(load_target(options.model, dtype, device), settings.anchors, examples)
    made_of = f"{identity.target} {settings.anchors} {options.teacher_dtype} {identity.examples}"
    cache = CachedTeacher(
        options.cache,
        hashlib.sha256(made_of.encode()).hexdigest(),
        examples,
        len(settings.anchors),
        read_embedding(options.model, read_target_config(options.model), torch.float32).to(device),
    )
    if world.rank == 0 and not cache.complete:
        cache.build(LiveTeacher(load_target(options.model, dtype, device), settings.anchors, examples))
    world.wait()
    return cache


def train(options: TrainOptions, arguments: Sequence[str], signals: StopSignals) -> bool:
    """Runs the training that the command line asks for; returns whether it is complete.

    Whatever can be refused is refused before anything is written into the run's folder.
    """
    name = options.name or target_name(options.model)
    target = read_target_config(options.model)
    settings = settings_of(options, name, target.num_hidden_layers)
    check_anchors(settings.anchors, target.num_hidden_layers)
    device = local_device(options.device)
    world = World.join(device)
    files = [file for path in options.data for file in data_files(path)]
    examples = load_examples(
        files, load_tokenizer(options.model), target.vocab_size, settings.max_length, settings.held_out
    )
    splits = SplitDraw(
        settings.anchors,
        *layer_bytes(options.model),
        stages=settings.stages,
        splits=settings.splits,
        uneven=settings.uneven,
    )
    identity = Identity(settings, read_digest(options.model), examples_hash(examples), world.size)
    folder = RunFolder(options.out, identity)
    checkpoint = folder.load()
    if checkpoint is not None and checkpoint.step >= settings.steps:
        print(f"{options.out}: all {settings.steps} steps are done", file=sys.stderr)
        return True
    stages = tuple(sorted({features.stages for features in splits.usual}))
    module = build_module(settings, options.model, examples, stages).to(device)
    teacher = build_teacher(options, identity, examples, device, world)
    if settings.init_projections == "fit" and checkpoint is None:
        fit_projections(module, teacher, examples, settings.init_layers)
    trainer = Trainer(
        settings,
        module,
        teacher,
        read_head(options.model).float().to(device),
        examples,
        splits,
        folder,
        cadence=Cadence(
            save=options.save_every,
            validate=options.validate_every,
            validation_examples=options.validation_examples,
        ),
        world=world,
    )
    if checkpoint is not None:
        trainer.resume(checkpoint)
    with signals.deferred():
        if world.rank == 0:
            folder.begin(_provenance(arguments, name, files, examples), trainer.step)
        complete = trainer.fit(signals)
    world.leave()
    return complete


def _provenance(
    arguments: Sequence[str], name: str, files: Sequence[Path], examples: Sequence[Example]
) -> TrainingProvenance:
    return TrainingProvenance(
        command=command_line("speculation.training.train", arguments),
        git=git_commit(),
        python=python_version(),
        versions=package_versions(),
        target=name,
        data={file.name: data_hash([file]) for file in files},
        examples=len(examples),
        answer_tokens=answer_counts(examples).total(),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: complete; 1: bad input; 3: stopped by a signal, run again to go on."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    signals = StopSignals()
    signals.install()
    try:
        options = read(TRAIN_PROGRAM, given, os.environ)
        complete = train(options, given, signals)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except Interrupted:
        complete = False
    if not complete:
        sys.stderr.write("interrupted: run the same command again to go on\n")
    return 0 if complete else EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
