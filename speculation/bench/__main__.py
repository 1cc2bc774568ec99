"""`python -m speculation.bench MODEL --prompts DIR --out DIR ...`: what `echelon bench` runs."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from speculation.bench.analysis.cells import Folder
from speculation.bench.analysis.crowd import Crowds, crowd_table
from speculation.bench.analysis.figures import TableRow, rows
from speculation.bench.analysis.report import Provenance, Results, markdown
from speculation.bench.configuration import BenchSettings, Contender, gpus
from speculation.bench.contenders.running import Running
from speculation.bench.contenders.starting import start
from speculation.bench.crowds import run_crowds
from speculation.bench.energy import Meter, open_meter
from speculation.bench.machine import provenance
from speculation.bench.options import Options, parse
from speculation.bench.prompts import load_data_sets
from speculation.bench.run import Work, run
from workers.shared.errors import ConfigError

_DIFFERENT, _BAD_INPUT, _STOPPED = 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0; 1: some row has an error; 2: bad input or a failed process; 3: interrupted, run again to go on."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Not SIGINT's own handler: a shell has jobs in the background ignore that signal.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        agreed = bench(parse(given), provenance(given))
    except ConfigError as error:
        sys.stderr.write(f"echelon bench: {error}\n")
        return _BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("echelon bench: stopped; run the same command again to go on\n")
        return _STOPPED
    return 0 if agreed else _DIFFERENT


def bench(options: Options, made_by: Provenance) -> bool:
    """Measures what is missing, then writes and prints the results; returns whether all agree. Raises `ConfigError`."""
    settings = options.settings
    data_sets = load_data_sets(options.prompts, settings.limit, settings.seed)
    data = {data_set.name: data_set.digest for data_set in data_sets}
    folder = Folder(options.out, settings, data)
    work = Work(
        groups=options.groups,
        temperatures=options.temperatures,
        data_sets=data_sets,
        repeats=options.repeats,
        settings=settings,
        git=made_by.git,
        load=made_by.load,
    )

    def start_contender(contender: Contender) -> Running:
        return start(contender, settings, options.checkpoints.get(str(contender.how.drafter)), folder.logs)

    def meter(contender: Contender) -> Meter | None:
        return open_meter(gpus(contender, settings), os.environ.get("CUDA_VISIBLE_DEVICES"))

    if options.concurrency:
        measured = run_crowds(work, options.concurrency, start_contender)
        crowds = Crowds(provenance=made_by, settings=shown(settings).described(), data=data, rows=measured)
        _write(options.out, "concurrency", crowds, crowd_table(measured))
        return True
    run(work, folder, start_contender, meter)
    cells = list(folder.cells())
    results = Results(
        provenance=made_by,
        settings=shown(settings).described(),
        data=data,
        commits=sorted({cell.git for cell in cells}),
        load=max(cell.load for cell in cells),
        rows=rows(cells),
    )
    _write(options.out, "results", results, markdown(results))
    plot(results.rows, options.out)
    return not any(row.error for row in results.rows)


def _write(folder: Path, name: str, results: Results | Crowds, table: str) -> None:
    (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    (folder / f"{name}.md").write_text(table)
    sys.stdout.write(table)


def plot(made: Sequence[TableRow], folder: Path) -> None:
    """Draws what there is to draw, or says what is missing for it."""
    try:
        from speculation.bench.plots import draw_all  # imports matplotlib, which is optional
    except ModuleNotFoundError as error:
        sys.stderr.write(f"echelon bench: no plots, for {error.name} is not installed: pip install 'echelon[bench]'\n")
        return
    draw_all(made, folder)


def shown(settings: BenchSettings) -> BenchSettings:
    """Settings without the machine's folders: of a model that is a file or a folder, its name."""

    def name(model: str) -> str:
        return Path(model).name if Path(model).exists() else model

    drafter = settings.engine.drafter
    if drafter.model is not None:
        drafter = replace(drafter, model=name(drafter.model))
    drafter = replace(drafter, cascade=tuple(map(name, drafter.cascade)))
    return replace(settings, model=name(settings.model), engine=replace(settings.engine, drafter=drafter))


if __name__ == "__main__":
    sys.exit(main())
