"""`python -m speculation.bench MODEL --prompts DIR --out DIR ...`: what `echelon bench` runs."""

import signal
import sys
from collections.abc import Sequence

import msgspec

from speculation.bench.cells import Folder
from speculation.bench.configuration import Contender
from speculation.bench.figures import rows
from speculation.bench.machine import provenance
from speculation.bench.options import Options, parse
from speculation.bench.processes import Running, start
from speculation.bench.prompts import load_data_sets
from speculation.bench.report import Provenance, Results, markdown
from speculation.bench.run import Work, run
from workers.errors import ConfigError

_DIFFERENT, _BAD_INPUT, _STOPPED = 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0; 1: some row has an error; 2: bad input or a failed process; 3: interrupted, run again to go on."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        made = bench(parse(given), provenance(given))
    except ConfigError as error:
        sys.stderr.write(f"echelon bench: {error}\n")
        return _BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("echelon bench: stopped; run the same command again to go on\n")
        return _STOPPED
    return _DIFFERENT if any(row.error for row in made.rows) else 0


def bench(options: Options, made_by: Provenance) -> Results:
    """Measures what is missing, then writes and prints the results. Raises `ConfigError`."""
    settings = options.settings
    data_sets = load_data_sets(options.prompts, settings.limit, settings.seed)
    data = {data_set.name: data_set.digest for data_set in data_sets}
    folder = Folder(options.out, settings, data)
    work = Work(
        groups=options.groups,
        temperatures=options.temperatures,
        data_sets=data_sets,
        repeats=options.repeats,
        max_tokens=settings.max_tokens,
        git=made_by.git,
        load=made_by.load,
    )

    def start_contender(contender: Contender) -> Running:
        return start(contender, settings, None if options.module is None else str(options.module), folder.logs)

    run(work, folder, start_contender)
    cells = list(folder.cells())
    results = Results(
        provenance=made_by,
        settings=msgspec.to_builtins(settings),
        data=data,
        commits=sorted({cell.git for cell in cells}),
        load=max(cell.load for cell in cells),
        rows=rows(cells),
    )
    (options.out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    table = markdown(results)
    (options.out / "results.md").write_text(table)
    sys.stdout.write(table)
    return results


if __name__ == "__main__":
    sys.exit(main())
