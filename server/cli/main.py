"""The `echelon` command."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from server.cli.plan import check_config_file, plan
from server.cli.programs import PROGRAMS, run_program
from server.doctor.doctor import doctor
from server.launcher.launch import serve
from server.launcher.options import CHECK, DOCTOR, PLAN, SERVE
from workers.shared.errors import ConfigError
from workers.shared.options.sources import read

_ABOUT = "Serve one conversation as fast as several devices can, with output that is exactly that of plain decoding."

_Arguments = Sequence[str]
_COMMANDS: dict[str, tuple[str, Callable[[_Arguments], int]]] = {
    "serve": (SERVE.text, lambda given: serve(read(SERVE, given, os.environ))),
    "plan": (PLAN.text, lambda given: plan(read(PLAN, given, os.environ))),
    "check-config": (CHECK.text, lambda given: check_config_file(read(CHECK, given, os.environ))),
    "doctor": (DOCTOR.text, lambda given: doctor(read(DOCTOR, given, os.environ))),
    **{name: (program.text, partial(run_program, name)) for name, program in PROGRAMS.items()},
}


def main() -> None:
    """Entry point of the `echelon` script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs a command line without its first word; returns the exit status, 2 for what the operator got wrong."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    name, *given = arguments
    if name not in _COMMANDS:
        sys.stderr.write(f"echelon: there is no command {name}; choose from {', '.join(_COMMANDS)}\n")
        return 2
    try:
        return _COMMANDS[name][1](given)
    except ConfigError as error:
        sys.stderr.write(f"echelon: {error}\n")
        return 2


def _overview() -> str:
    commands = "\n".join(f"  {name:14} {text}" for name, (text, _) in _COMMANDS.items())
    return f"usage: echelon COMMAND [OPTIONS]\n\n{_ABOUT}\n\n{commands}\n\n`echelon COMMAND --help` lists the options."
