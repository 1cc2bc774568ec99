"""`python -m speculation.training.train MODEL --data DIR --out DIR ...`: trains a drafter, or goes on with it."""

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from speculation.pdm.target import read_embedding, read_target_config, target_name
from speculation.training.examples.data import (
    Example,
    answer_counts,
    data_files,
    data_hash,
    examples_hash,
    load_examples,
)
from speculation.training.interruption import EXIT_INTERRUPTED, Interrupted, StopSignals
from speculation.training.kinds.table import KINDS
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
from speculation.training.teacher import LiveTeacher, Teacher, load_target, load_tokenizer
from speculation.training.teacher_cache import CachedTeacher
from speculation.training.trainer import Cadence, Trainer
from workers.shared.errors import ConfigError
from workers.shared.model_files.digest import read_digest
from workers.shared.options.sources import read


def build_teacher(
    options: TrainOptions,
    identity: Identity,
    states: tuple[int, ...],
    examples: Sequence[Example],
    device: torch.device,
    world: World,
) -> Teacher:
    """The target itself, or its cached answers, which are computed first where they are missing.

    `states` are the hidden states that it gives, the first of which is 0, the embedding.
    """
    dtype = getattr(torch, options.teacher_dtype)
    if options.cache is None:
        return LiveTeacher(load_target(options.model, dtype, device), states, examples)
    made_of = f"{identity.target} {states} {options.teacher_dtype} {identity.examples}"
    cache = CachedTeacher(
        options.cache,
        hashlib.sha256(made_of.encode()).hexdigest(),
        examples,
        len(states),
        read_embedding(options.model, read_target_config(options.model), torch.float32).to(device),
    )
    if world.rank == 0 and not cache.complete:
        cache.build(LiveTeacher(load_target(options.model, dtype, device), states, examples))
    world.wait()
    return cache


def train(options: TrainOptions, arguments: Sequence[str], signals: StopSignals) -> bool:
    """Runs the training that the command line asks for; returns whether it is complete.

    Whatever can be refused is refused before anything is written into the run's folder.
    """
    name = options.name or target_name(options.model)
    target = read_target_config(options.model)
    settings = settings_of(options, name, target.num_hidden_layers)
    device = local_device(options.device)
    world = World.join(device)
    files = [file for path in options.data for file in data_files(path)]
    examples = load_examples(
        files, load_tokenizer(options.model), target.vocab_size, settings.max_length, settings.held_out
    )
    identity = Identity(settings, read_digest(options.model), examples_hash(examples), world.size)
    folder = RunFolder(options.out, identity)
    checkpoint = folder.load()
    if checkpoint is not None and checkpoint.step >= settings.steps:
        print(f"{options.out}: all {settings.steps} steps are done", file=sys.stderr)
        return True
    learner = KINDS[settings.kind](settings, options.model, examples, device)
    teacher = build_teacher(options, identity, learner.states, examples, device, world)
    if options.start is not None and checkpoint is None:
        learner.start(options.start)
    learner.begin(teacher, fresh=checkpoint is None and options.start is None)
    trainer = Trainer(
        settings,
        learner,
        examples,
        folder,
        device=device,
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
