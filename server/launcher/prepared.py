"""Model folders, prepared by a process of its own because that needs torch."""

import subprocess
import sys
from pathlib import Path

from msgspec.structs import replace

from server.launcher.options import ProcessOptions
from server.launcher.resolve import ModelSize, local_endpoints, plan_engine
from workers.shared.errors import ConfigError
from workers.shared.lifecycle import parent_variable
from workers.shared.memory import held_bytes
from workers.shared.model_files.draft_heads import recognise_head
from workers.shared.model_files.facts import read_facts
from workers.shared.model_files.shipped_modules import shipped_module
from workers.shared.model_files.tensor_sizes import layer_bytes
from workers.shared.options.engine import DEFAULT_STAGES, EngineOptions, rounding_of
from workers.shared.packed.inventory import read_inventory

_TOLD = 2  # exit code of a program that has said in one line what is wrong


def prepare_model(model: str, revision: str | None = None, *, draft: bool = False) -> Path:
    """The prepared folder of `model` at a `revision`; the download and conversion show their own progress on stderr.

    What is to `draft` may be a draft head, which is left as it is.

    Leaves this process where that program has said why it cannot.
    """
    command = [sys.executable, "-m", "workers.prepare", model]
    command += [] if revision is None else ["--revision", revision]
    command += ["--draft"] if draft else []
    environment = parent_variable()  # a download ends with whoever wanted it
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode == _TOLD:
        sys.exit(_TOLD)
    if done.returncode != 0:
        raise ConfigError(f"model {model} could not be prepared (see above)")
    return Path(done.stdout.splitlines()[-1])


def with_prepared_draft_model(options: EngineOptions) -> EngineOptions:
    """The same options with the draft model, or the models of a cascade, as prepared folders.

    A draft head says what it is. Raises `ConfigError` where it cannot be used, or the drafter asks for another.
    """
    cascade = tuple(str(prepare_model(smaller)) for smaller in options.drafter.cascade)
    drafter = replace(options.drafter, cascade=cascade)
    if drafter.model is None:
        return replace(options, drafter=drafter)
    folder = Path(drafter.model).expanduser().absolute()
    head = recognise_head(folder)
    if head is None:
        folder = prepare_model(drafter.model, draft=True)
        head = recognise_head(folder)
    if head is not None and drafter.name not in ("auto", head.kind):
        raise ConfigError(
            f"--draft-model {folder} is a draft head of the kind {head.kind}, and not for --drafter {drafter.name}; "
            f"leave --drafter out"
        )
    name = drafter.name if head is None else head.kind
    return replace(options, drafter=replace(drafter, name=name, model=str(folder)))


def read_model(options: ProcessOptions) -> ModelSize:
    """Prepares the model, and reads what the launcher needs to know of it."""
    model, engine = options.model, options.engine
    if options.revision is not None and ("/" not in model or Path(model).expanduser().exists()):
        raise ConfigError(f"--revision {options.revision}: only models on the hub, ORG/NAME, have revisions")
    folder = prepare_model(model, options.revision)
    kind = engine.device[0].partition(":")[0]
    # What weights take in memory is what a token waits for, and only packed ones differ from each other by kind.
    sizes = held_bytes(read_inventory(folder, rounding_of(engine)), kind, 4 if kind == "cpu" else 2)
    layers, head = layer_bytes(folder, sizes)
    name = display_name(model)
    return ModelSize(name, folder, layers, head, read_facts(folder).max_position_embeddings, shipped_module(name))


def check_flags(options: EngineOptions, model: str) -> None:
    """Raises `ConfigError` for options that no model could mend, before anything is fetched or started.

    They are resolved against a stand-in that has as many layers as they ask for.
    """
    layers = sum(options.split) or options.stages or DEFAULT_STAGES
    name = display_name(model)
    stand_in = ModelSize(name, Path(model), [1] * layers, 0, options.max_model_len or 2, shipped_module(name))
    stages = len(options.split) or options.stages or DEFAULT_STAGES
    plan_engine(options, stand_in, local_endpoints(Path(), stages, 1))


def display_name(model: str) -> str:
    """The name under which a model is served unless --served-model-name says otherwise."""
    if model == "default":
        return "SmolLM2-135M-Instruct"
    path = Path(model).expanduser()
    return path.resolve().name.removesuffix(".gguf") if path.exists() else model
