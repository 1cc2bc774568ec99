"""`python -m speculation.bench.methods MODEL --prompts DIR --out DIR`: writes docs/methods.md."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from speculation.bench.analysis.cells import Cell
from speculation.bench.analysis.report import Provenance
from speculation.bench.configuration import (
    METHODS,
    NONE,
    SINGLE,
    USES_CASCADE,
    BenchSettings,
    Contender,
    has_network,
)
from speculation.bench.machine import provenance
from speculation.bench.methods.entries import Entry, entries, measurable
from speculation.bench.methods.figures import figures
from speculation.bench.methods.options import METHODS_PROGRAM, MethodsOptions
from speculation.bench.methods.page import Emulated, PageContent, page
from speculation.bench.methods.pitfalls import Made
from speculation.bench.methods.sections import Bench
from speculation.bench.methods.times import DRAFT_MODEL, LoneTimes, lone_times
from speculation.bench.options import read_checkpoints, weights_digest
from speculation.bench.prompts import load_data_sets
from workers.shared.drafters import DRAFTERS
from workers.shared.errors import ConfigError
from workers.shared.options.engine import DrafterOptions, EngineOptions
from workers.shared.options.sources import read

_BAD_INPUT, _STOPPED = 2, 3
_IDLE_LOAD = 0.5
_CONTEXT = 2048
_WALL, _ALONE = "wall", "alone"
_TOGETHER = 4  # contenders side by side where the machine's own times do not count


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: all is measured; 2: bad input or a failed process; 3: stopped. But for bad input, the page is
    written in any case."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.default_int_handler)
    try:
        comparison = Comparison(
            read(METHODS_PROGRAM, given, os.environ), provenance(given, "speculation.bench.methods")
        )
    except ConfigError as error:
        return _refused(error)
    minutes = comparison.options.minutes
    if minutes:
        signal.alarm(60 * minutes)
    try:
        if minutes != 0:
            comparison.measure()
    except ConfigError as error:
        return _refused(error)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; run the same command again to go on\n")
        return _STOPPED
    finally:
        signal.alarm(0)
        comparison.write()
    return _BAD_INPUT if comparison.failed else 0


def _refused(error: ConfigError) -> int:
    sys.stderr.write(f"methods: {error}\n")
    return _BAD_INPUT


class Comparison:
    """What is asked for, what is measured already, and the page."""

    def __init__(self, options: MethodsOptions, made_by: Provenance) -> None:
        """Raises `ConfigError` for options that are wrong."""
        self.options = options
        self.failed: dict[str, str] = {}  # why, by method
        if unknown := [method for method in options.methods if method not in METHODS]:
            raise ConfigError(f"--methods {','.join(unknown)}: choose from {', '.join(METHODS)}")
        self._made_by = made_by
        ships = [name for name, row in DRAFTERS.items() if row.ships]
        checkpoints = read_checkpoints(options.checkpoint)
        if options.draft_module is not None:
            checkpoints = dict.fromkeys(ships, str(Path(options.draft_module).resolve())) | checkpoints
        given = {*checkpoints}
        if options.draft_module is None and options.model == "default":
            given |= {*ships}
        if options.draft_model is not None:
            given.add("model")
        if options.cascade:
            given.add("cascade")
        asked = {NONE, *(options.methods or METHODS)}
        self._entries = [entry for entry in entries(given) if entry.method in asked]
        self._keep({name: weights_digest(Path(path), "--checkpoint") for name, path in checkpoints.items()})
        engine = EngineOptions(max_model_len=_CONTEXT, drafter=DrafterOptions(always=True))
        settings = BenchSettings(
            model=options.model,
            max_tokens=options.max_tokens,
            limit=options.limit,
            num_speculative_tokens=options.drafts,
            engine=engine,
        )
        data_sets = load_data_sets(options.prompts, options.limit, settings.seed)
        self._bench = Bench(
            settings,
            data_sets,
            options.temperature,
            checkpoints,
            options.draft_model,
            options.cascade,
            options.out,
            made_by,
        )
        self._real = replace(settings, max_tokens=options.wall_tokens)

    def _keep(self, digests: dict[str, str]) -> None:
        """Notes what drafters are measured with; raises `ConfigError` where one had another checkpoint before."""
        file = self.options.out / "checkpoints.json"
        kept = msgspec.json.decode(file.read_bytes(), type=dict[str, str]) if file.exists() else {}
        for name, digest in digests.items():
            if kept.get(name, digest) != digest:
                raise ConfigError(
                    f"--out {self.options.out}: {name} was measured with another checkpoint; choose another"
                )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(kept | digests))

    def measure(self) -> None:
        """Measures what is missing: real time, drafts alone, then pipelines of emulated stages, which need those."""
        bench, options, real = self._bench, self.options, self._real
        able = measurable(self._entries)
        stages = options.wall_stages
        contenders = [Contender(entry.method, 1 if entry.how.one_device else stages) for entry in able]
        self._failed(bench.measure(_WALL, contenders, {}, real, options.repeats))
        alone = [entry for entry in able if entry.emulates]
        drafting = [entry for entry in alone if entry.method != NONE]
        self._alone(bench, _ALONE, [Contender(SINGLE, 1)], drafting)
        times = lone_times(bench.cells(_ALONE, bench.settings))
        if times is None:
            raise ConfigError("a token has taken no time; see the logs of the section `alone`")
        if not self._cascade_is_timed(times):
            alone = [entry for entry in alone if entry.method not in USES_CASCADE]
        for count in options.stages:
            for shared, chosen in ((False, alone), (True, [entry for entry in alone if entry.streams_a_network])):
                self._pipelines(bench, _name(count, shared), chosen, count, times, shared=shared)
        self._sweep([entry for entry in alone if entry.method == NONE or entry.how.number], times)

    def _sweep(self, swept: Sequence[Entry], times: LoneTimes) -> None:
        """Other numbers of whatever methods have several of."""
        for number in self.options.sweep:
            trial = self._bench.trying(number)
            self._alone(trial, _trial(_ALONE, number), [], [entry for entry in swept if has_network(entry.how)])
            timed = times.updated(trial.cells(_trial(_ALONE, number), trial.settings))
            for count in self.options.stages:
                self._pipelines(trial, _trial(_name(count, shared=False), number), swept, count, timed, shared=False)

    def _alone(self, bench: Bench, name: str, others: list[Contender], drafting: Sequence[Entry]) -> None:
        """A section with all layers in one stage, beside which drafts are made: of streams, one frame ahead of it."""
        ahead = replace(bench.settings, engine=replace(bench.settings.engine, delta=1))
        methods = [entry.method for entry in drafting if entry.method not in USES_CASCADE]
        contenders = [*others, *(Contender(method, 1) for method in methods)]
        self._failed(bench.measure(name, contenders, dict.fromkeys(methods, ahead), bench.settings, together=_TOGETHER))

    def _pipelines(
        self, bench: Bench, name: str, chosen: Sequence[Entry], stages: int, times: LoneTimes, *, shared: bool
    ) -> None:
        """One section with emulated stages."""
        base, each = bench.emulated(chosen, stages, times, self.options.row_cost, shared=shared)
        contenders = [Contender(entry.method, stages) for entry in chosen]
        self._failed(bench.measure(name, contenders, each, base, together=_TOGETHER))

    def _failed(self, reasons: Mapping[str, str]) -> None:
        for method, reason in reasons.items():
            sys.stderr.write(f"methods: {method}: {reason}\n")
            self.failed[method] = reason

    def _cascade_is_timed(self, times: LoneTimes) -> bool:
        """Whether a pass of the cascade's model is known: that of the draft model."""
        return self.options.cascade == (self.options.draft_model,) and DRAFT_MODEL in times.draft_ms

    def write(self) -> None:
        """Writes the page from whatever there is."""
        bench, options = self._bench, self.options
        times = lone_times(bench.cells(_ALONE, bench.settings))
        wall = bench.cells(_WALL, self._real)
        measured = PageContent(
            entries=self._entries,
            temperatures=options.temperature,
            made=self._made(wall),
            wall_stages=options.wall_stages,
            wall=figures(wall),
            times=times,
            emulated=[] if times is None else [self._emulated(count, times) for count in sorted(options.stages)],
        )
        options.page.write_text(page(measured))
        sys.stderr.write(f"{options.page} is written\n")

    def _emulated(self, stages: int, times: LoneTimes) -> Emulated:
        found: list[list[Cell]] = []
        for shared in (False, True):
            base, _ = self._bench.emulated([], stages, times, self.options.row_cost, shared=shared)
            found.append(self._bench.cells(_name(stages, shared), base))
        tried = {}
        for number in self.options.sweep:
            trial = self._bench.trying(number)
            base, _ = trial.emulated([], stages, times, self.options.row_cost, shared=False)
            tried[number] = figures(trial.cells(_trial(_name(stages, shared=False), number), base))
        own, with_a_share = found
        plain = [cell for cell in own if cell.key.contender.method == NONE]
        return Emulated(
            stages,
            times.slowdown(stages, self._bench.cores),
            figures(own),
            figures([*plain, *with_a_share]),
            tried,
        )

    def _made(self, cells: Sequence[Cell]) -> Made:
        by, options = self._made_by, self.options
        load = max((cell.load for cell in cells), default=0.0)
        busy = [f"The machine was not idle: its load average was {load:.1f} at the start."] if load > _IDLE_LOAD else []
        commits = sorted({cell.git for cell in cells}) or [by.git]
        return Made(
            command=by.command,
            machine=f"{by.cpu}, {by.cores} cores, {by.memory_gib:.0f} GiB; {by.date}; commit {', '.join(commits)}",
            cores=self._bench.cores,
            prompts=sum(len(data_set.prompts) for data_set in self._bench.data_sets),
            max_tokens=max(options.max_tokens, options.wall_tokens),
            drafts=options.drafts,
            sweep=options.sweep,
            row_cost=options.row_cost,
            draft_model=None if options.draft_model is None else Path(options.draft_model).name,
            warnings=[*busy, *(f"{method} could not be measured: {reason}" for method, reason in self.failed.items())],
        )


def _name(stages: int, shared: bool) -> str:
    return f"n{stages}-{'shared' if shared else 'own'}"


def _trial(section: str, number: int) -> str:
    return f"{section}-{number}"


if __name__ == "__main__":
    sys.exit(main())
