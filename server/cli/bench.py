"""`echelon bench` and `echelon simulate`: programs of their own, because this package may not import theirs."""

import typer

from server.cli.become import become

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_measuring_commands(app: typer.Typer) -> None:
    """Adds both commands to `app`; their options, --help included, are their own."""

    @app.command("bench", context_settings=_PASS_ON)
    def bench_command(context: typer.Context) -> None:
        """Compare methods on this machine: same workers, same prompts, over HTTP."""
        become("speculation.bench", context.args)

    @app.command("simulate", context_settings=_PASS_ON)
    def simulate_command(context: typer.Context) -> None:
        """Predict tokens/s on hardware that is not at hand."""
        become("speculation.simulate", context.args)
