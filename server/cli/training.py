"""`echelon distill` and `echelon train`: thin, because the API server's side of the house never imports torch."""

from collections.abc import Sequence
from typing import NoReturn

import typer

from server.cli.become import become
from server.launcher.launch import display_name, prepare_model
from workers.shared.errors import ConfigError

# The commands' own parsers know the options; --help, too, is theirs.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_training_commands(app: typer.Typer) -> None:
    """Adds both commands to `app`."""

    @app.command("distill", context_settings=_PASS_ON, add_help_option=False)
    def distill_command(context: typer.Context) -> None:
        """Generate answers of MODEL itself, to train a draft module on: echelon distill MODEL --out DIR."""
        _run("speculation.training.distill", context.args, named=False)

    @app.command("train", context_settings=_PASS_ON, add_help_option=False)
    def train_command(context: typer.Context) -> None:
        """Train a draft module for MODEL: echelon train MODEL --data DIR --layers 2 --anchors 0,... --out DIR."""
        _run("speculation.training.train", context.args, named=True)


def _run(module: str, arguments: Sequence[str], *, named: bool) -> NoReturn:
    """Becomes a training program. MODEL comes first; it is passed on as a prepared folder, with its name if `named`."""
    if arguments and not arguments[0].startswith("-"):
        model, *rest = arguments
        try:
            folder = prepare_model(model)
        except ConfigError as error:
            typer.echo(f"echelon: {error}", err=True)
            raise typer.Exit(2) from error
        given = any(argument == "--name" or argument.startswith("--name=") for argument in rest)
        arguments = [str(folder), *rest, *(["--name", display_name(model)] if named and not given else [])]
    become(module, arguments)
