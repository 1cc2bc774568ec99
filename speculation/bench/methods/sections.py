"""The parts of the comparison: each is a bench of its own, in a folder of its own."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path

from msgspec.structs import replace

from speculation.bench.analysis.cells import Cell, Folder
from speculation.bench.analysis.report import Provenance
from speculation.bench.configuration import BenchSettings, Contender
from speculation.bench.contenders.running import Running
from speculation.bench.contenders.starting import start
from speculation.bench.methods.entries import Entry
from speculation.bench.methods.times import LoneTimes
from speculation.bench.prompts import DataSet
from speculation.bench.run import Work, run
from workers.shared.errors import ConfigError


@dataclass(frozen=True)
class Bench:
    """What all sections share."""

    settings: BenchSettings  # of nothing emulated, and without what drafters have: folders outlive what is added
    data_sets: Sequence[DataSet]
    temperatures: Sequence[float]
    checkpoints: Mapping[str, str]  # paths by drafter
    draft_model: str | None
    cascade: tuple[str, ...]
    out: Path
    made_by: Provenance

    @property
    def cores(self) -> int:
        """That this process may use."""
        return len(os.sched_getaffinity(0))

    def measure(
        self,
        name: str,
        contenders: Sequence[Contender],
        settings: Mapping[str, BenchSettings],
        base: BenchSettings,
        repeats: int = 1,
        together: int | None = None,
    ) -> dict[str, str]:
        """Measures what section `name` lacks; returns why, by method, some of it could not be.

        `settings` are by method, `base` what the folder is known by. So many are measured `together`, by default all:
        an interruption costs those that had been started. One method that fails does not stop the others.
        """
        folder, left = self._folder(name, base), list(contenders)
        failed: dict[str, str] = {}
        last: list[Contender] = []  # started

        def started(contender: Contender) -> Running:
            last.append(contender)
            mine = settings.get(contender.method, base)
            drafter = replace(mine.engine.drafter, model=self.draft_model, cascade=self.cascade)
            mine = replace(mine, engine=replace(mine.engine, drafter=drafter))
            return start(contender, mine, self.checkpoints.get(str(contender.how.drafter)), folder.logs)

        while True:
            size = together or max(1, len(left))
            work = Work(
                groups=[left[start : start + size] for start in range(0, len(left), size)],
                temperatures=self.temperatures,
                data_sets=self.data_sets,
                repeats=repeats,
                settings=base,
                git=self.made_by.git,
                load=self.made_by.load,
            )
            try:
                run(work, folder, started)
                return failed
            except ConfigError as error:
                # What an answer was asked of is named; else the last one has not started.
                guilty = next((one for one in left if str(error).startswith(f"{one}, ")), last[-1])
                failed[guilty.method] = str(error).splitlines()[-1]
                left.remove(guilty)

    def trying(self, number: int) -> "Bench":
        """The same with rounds of so many drafts, and so much of whatever else methods have several of."""
        return changed(self, settings=replace(self.settings, num_speculative_tokens=number, several=number))

    def cells(self, name: str, base: BenchSettings) -> list[Cell]:
        """What section `name` has measured so far."""
        return list(self._folder(name, base).cells()) if (self.out / name).exists() else []

    def emulated(
        self, entries: Sequence[Entry], stages: int, times: LoneTimes, row_cost: tuple[float, ...], *, shared: bool
    ) -> tuple[BenchSettings, dict[str, BenchSettings]]:
        """Settings of the folder, and of each method."""

        def of(method: str) -> BenchSettings:
            emulation = times.emulation(method, stages, self.cores, row_cost, shared=shared)
            return replace(self.settings, engine=replace(self.settings.engine, emulate=emulation))

        return of(""), {entry.method: of(entry.method) for entry in entries}

    def _folder(self, name: str, base: BenchSettings) -> Folder:
        return Folder(self.out / name, base, {data_set.name: data_set.digest for data_set in self.data_sets})
