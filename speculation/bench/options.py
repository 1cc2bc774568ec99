"""Options of `echelon bench`: its own, and those of `echelon serve`'s engine that it does not vary itself."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from speculation.bench.configuration import (
    BENCH,
    METHODS,
    BenchSettings,
    Contender,
    MeasuredEngine,
    check,
    contenders,
)
from workers.shared.drafters import DRAFTERS
from workers.shared.errors import ConfigError
from workers.shared.options.declared import AtLeastOne, NotNegative, Share, about
from workers.shared.options.engine import EngineOptions, ModelArgument
from workers.shared.options.sources import Program, read

_QUICK_PROMPTS = 1
_QUICK_TOKENS = 32
_FULL_TOKENS = 256

Temperature = Annotated[float, Meta(ge=0, le=2)]


class BenchOptions(ModelArgument, frozen=True, kw_only=True):
    """The command line."""

    prompts: Annotated[str, about(BENCH, "Folder; every .jsonl file in it is a data set", metavar="DIR")]
    out: Annotated[str, about(BENCH, "Folder for results, logs and raw measurements", metavar="DIR")]
    methods: Annotated[tuple[str, ...], about(BENCH, f"Of {','.join(METHODS)}")] = ("none", "single", "ngram")
    stages: Annotated[tuple[AtLeastOne, ...], about(BENCH, "Such as 2,3,5,10")] = (2,)
    temperature: Annotated[tuple[Temperature, ...], about(BENCH, "Such as 0,1")] = (0.0,)
    concurrency: Annotated[
        tuple[AtLeastOne, ...],
        about(
            BENCH,
            "Such as 1,2,4,8: ask so many prompts at once; concurrency.md is on all streams together, and hf is then "
            "Hugging Face's continuous batching",
            default="one prompt after the other",
        ),
    ] = ()
    repeats: Annotated[AtLeastOne, about(BENCH, "Of everything; speeds are then medians")] = 1
    quick: Annotated[bool, about(BENCH, f"{_QUICK_PROMPTS} prompt a data set, {_QUICK_TOKENS} tokens")] = False
    limit: Annotated[AtLeastOne | None, about(BENCH, "Prompts a data set, the first ones", default="all")] = None
    max_tokens: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        about(BENCH, "Of an answer; the time after the first is what is measured", default=str(_FULL_TOKENS)),
    ] = None
    top_k: Annotated[NotNegative, about(BENCH, "Sample from so many tokens; 0: from all")] = 0
    top_p: Annotated[Share, about(BENCH, "Sample from the likeliest tokens with this probability together")] = 1.0
    ignore_eos: Annotated[bool, about(BENCH, "Go on after end tokens, so that all answers are equally long")] = False
    seed: Annotated[int, about(BENCH, "From which each prompt's seed is made")] = 0
    num_speculative_tokens: Annotated[AtLeastOne, about(BENCH, "Drafts a frame, for dtv-...")] = 4
    checkpoint: Annotated[
        tuple[str, ...],
        about(
            BENCH,
            "What one drafter has in place of --draft-module or --draft-model, such as exit=DIR; several are separated "
            "by commas",
            metavar="DRAFTER=PATH",
        ),
    ] = ()
    engine: MeasuredEngine = EngineOptions()


BENCH_PROGRAM = Program(
    "echelon bench",
    "Serves MODEL with every method in turn, sends all of them the same prompts over HTTP, and writes results.json and "
    "results.md. Run the same command again to go on after an interruption.",
    BenchOptions,
)


@dataclass(frozen=True)
class Options:
    """The command line, checked."""

    prompts: Path
    out: Path
    groups: list[list[Contender]]
    temperatures: tuple[float, ...]
    repeats: int
    concurrency: tuple[int, ...]
    checkpoints: dict[str, str]  # paths by drafter, of those that are given one
    settings: BenchSettings


def parse(arguments: Sequence[str]) -> Options:
    """Reads the command line; raises `ConfigError` naming the option that is wrong."""
    given = read(BENCH_PROGRAM, arguments, os.environ)
    drafter = given.engine.drafter
    own = read_checkpoints(given.checkpoint)
    settings = BenchSettings(
        model=given.model,
        max_tokens=given.max_tokens or (_QUICK_TOKENS if given.quick else _FULL_TOKENS),
        limit=given.limit if given.limit is not None else (_QUICK_PROMPTS if given.quick else None),
        top_k=given.top_k,
        top_p=given.top_p,
        seed=given.seed,
        num_speculative_tokens=given.num_speculative_tokens,
        ignore_eos=given.ignore_eos,
        module=None if drafter.module is None else weights_digest(Path(drafter.module), "--draft-module"),
        checkpoints={name: weights_digest(Path(path), "--checkpoint") for name, path in own.items()},
        engine=replace(given.engine, drafter=replace(drafter, module=None)),  # wherever it is: its digest tells
    )
    crowds = tuple(sorted(set(given.concurrency)))
    if crowds:
        settings = replace(settings, engine=replace(settings.engine, max_num_seqs=max(crowds)))
    groups = contenders(given.methods, given.stages)
    check(settings, given.methods)
    with_module = [name for name, row in DRAFTERS.items() if row.needs_module]
    shared = {} if drafter.module is None else dict.fromkeys(with_module, str(Path(drafter.module).resolve()))
    temperatures = tuple(dict.fromkeys(given.temperature))
    if not temperatures:
        raise ConfigError("--temperature: give numbers from 0 to 2, such as 0,1")
    return Options(
        Path(given.prompts), Path(given.out), groups, temperatures, given.repeats, crowds, shared | own, settings
    )


def read_checkpoints(given: Sequence[str]) -> dict[str, str]:
    """Absolute paths by drafter; raises `ConfigError` for what is not DRAFTER=PATH."""
    found: dict[str, str] = {}
    names = [str(name) for name, row in DRAFTERS.items() if row.needs_module or row.needs_model]
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not path or name not in names:
            raise ConfigError(f"--checkpoint {text}: give DRAFTER=PATH, with {' or '.join(names)}")
        found[name] = str(Path(path).resolve())
    return found


def weights_digest(checkpoint: Path, flag: str) -> str:
    """SHA-256 of the weights of what `flag` gives, a folder or a file; raises `ConfigError` where there are none."""
    file = checkpoint / "model.safetensors" if checkpoint.is_dir() else checkpoint
    if not file.exists() and (checkpoint / "pytorch_model.bin").exists():  # of some draft heads
        file = checkpoint / "pytorch_model.bin"
    try:
        with file.open("rb") as weights:
            return hashlib.file_digest(weights, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{flag} {checkpoint}: {error.strerror}: {file}") from error
