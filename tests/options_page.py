"""`python -m tests.options_page > docs/options.md`: the reference of all options, made from their declarations."""

import sys
from itertools import groupby
from operator import attrgetter
from typing import Any

from server.launcher.options import CHECK, DOCTOR, PLAN, SERVE
from speculation.bench.options import BENCH_PROGRAM
from speculation.simulate.__main__ import SIMULATE_PROGRAM
from speculation.training.options import DISTILL_PROGRAM, TRAIN_PROGRAM
from workers.shared.hosts.options import JOIN
from workers.shared.options.declared import Option, options_of
from workers.shared.options.sources import Program

_HEAD = """\
# Options

Made from their declarations by `make options`; do not edit. An option may be given in four places, the first of which
wins:

1. as a flag, such as `--max-model-len 4096`;
2. as a variable of the environment, such as `ECHELON_MAX_MODEL_LEN=4096`; an empty one counts as not there;
3. in a file that `--config FILE` names, TOML or JSON, such as `max_model_len = 4096`;
4. by its default.

Lists are separated by commas, or given several times. Paths are relative to the folder in which the command is called.
`echelon check-config FILE` says what a file would start. Besides, `ECHELON_CACHE` names the folder in which prepared
models are kept (`~/.cache/echelon`).

**A new option** is one field of a struct: of `EngineFields` or `DrafterFields` (`workers/shared/options/engine.py`)
where engine processes read it, of `ServerFields` (`server/settings.py`) where the API server does, of `EngineOptions`,
`DrafterOptions` or `ServeOptions` where the launcher settles it. Flag, variable, file, bounds, `--help`, `echelon
plan`, `echelon bench` and this page follow; `make options` writes the page. What contradicts other options goes into
`workers/decisions/check_config.py`.
"""


def page() -> str:
    """The whole page."""
    served = {option.name for option in options_of(SERVE.options)}
    parts = [_HEAD, _section(SERVE)]
    parts.append(_section(PLAN, served - {"token"}, "All options of `echelon serve`, and:"))
    parts += [_section(JOIN), _section(CHECK), _section(DOCTOR)]
    parts.append(_section(BENCH_PROGRAM, served - {"num_speculative_tokens", "stages"}, _BENCH))
    parts.append(_section(SIMULATE_PROGRAM))
    parts += [_section(DISTILL_PROGRAM), _section(TRAIN_PROGRAM)]
    return "\n".join(parts)


_BENCH = "Options of `echelon serve`'s engine, but for those that a bench varies itself (`--drafter`, `--split`), and:"


def _section(program: Program[Any], known: set[str] | frozenset[str] = frozenset(), note: str = "") -> str:
    options = [option for option in options_of(program.options) if option.name not in known]
    groups = list(dict.fromkeys(option.group for option in options))
    options.sort(key=lambda option: groups.index(option.group))
    lines = [f"## `{program.name}`", "", program.text, ""]
    if note:
        lines += [note, ""]
    for group, members in groupby(options, attrgetter("group")):
        lines += [f"**{group}**", "", "| option | accepts | meaning |", "| --- | --- | --- |"]
        lines += [_row(option) for option in members]
        lines.append("")
    return "\n".join(lines)


def _row(option: Option) -> str:
    cells = (f"`{option.flag}`", option.accepts, option.help)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
