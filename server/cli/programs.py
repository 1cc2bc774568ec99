"""Commands that are programs of their own, because this package may not import theirs; their options are theirs."""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from server.cli.become import become
from server.launcher.prepared import display_name, prepare_model
from workers.shared.hosts.options import JOIN


class SubProgram(NamedTuple):
    """A `python -m` program behind a command."""

    module: str
    text: str
    prepares: bool = False  # MODEL, the first argument, is handed on as a prepared folder
    named: bool = False  # and with its name


PROGRAMS = {
    "join": SubProgram("workers.hosts", JOIN.text),
    "prepare": SubProgram("workers.prepare", "Fetch and convert MODEL without serving it; prints the folder."),
    "bench": SubProgram("speculation.bench", "Compare methods on this machine: same workers, same prompts, over HTTP."),
    "simulate": SubProgram("speculation.simulate", "Predict tokens/s on hardware that is not at hand."),
    "distill": SubProgram(
        "speculation.training.distill", "Generate answers of MODEL itself, to train a draft module on.", prepares=True
    ),
    "train": SubProgram(
        "speculation.training.train",
        "Train a draft module, an exit head or a draft head for MODEL.",
        prepares=True,
        named=True,
    ),
}


def run_program(name: str, arguments: Sequence[str]) -> NoReturn:
    """Becomes a program of the table with the rest of a command line, so that signals and exit status are its own."""
    program = PROGRAMS[name]
    if program.prepares and arguments and not arguments[0].startswith("-"):
        model, *rest = arguments
        named = not program.named or any(word.split("=")[0] == "--name" for word in rest)
        arguments = [str(prepare_model(model)), *rest, *([] if named else ["--name", display_name(model)])]
    become(program.module, arguments)
