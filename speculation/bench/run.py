"""Runs what is not done yet: contenders side by side, prompt by prompt in turn."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil

from msgspec.structs import replace

from speculation.bench.analysis.cells import Answer, Cell, CellKey, Folder
from speculation.bench.analysis.counters import Counters
from speculation.bench.configuration import BenchSettings, Contender, devices
from speculation.bench.contenders.running import Running
from speculation.bench.energy import Meter
from speculation.bench.near_ties import Branch, proven
from speculation.bench.progress import AnswerBar
from speculation.bench.prompts import DataSet, Prompt
from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError
from workers.shared.memory import available_host_bytes
from workers.shared.messages import StageTimings, Status

_WARM_UP_TOKENS = 16
_PREFILL_PROMPTS = 4
_SPARE_BYTES = 2**30
_GROUP_MARGIN = 1.5  # groups grow while they answer, and a draft module comes on top
_LEAST_BYTES = 2**28  # of a group, should something else have freed memory meanwhile

Start = Callable[[Contender], Running]
MeterOf = Callable[[Contender], Meter | None]


@dataclass(frozen=True)
class Work:
    """What a bench consists of."""

    groups: Sequence[Sequence[Contender]]  # side by side
    temperatures: Sequence[float]
    data_sets: Sequence[DataSet]
    repeats: int
    settings: BenchSettings
    git: str
    load: float  # one-minute average before the bench began

    def keys(self, contender: Contender) -> Iterator[CellKey]:
        """All cells of a contender, in order."""
        for repeat in range(self.repeats):
            for temperature in self.temperatures:
                for data_set in self.data_sets:
                    yield CellKey(contender, temperature, data_set.name, repeat)


def run(work: Work, folder: Folder, start: Start, meter: MeterOf = lambda _: None) -> None:
    """Measures every cell that `folder` lacks. Raises `ConfigError` where a contender fails."""
    pending = [key for group in work.groups for one in group for key in work.keys(one) if not folder.has(key)]
    sizes = {data_set.name: len(data_set.prompts) for data_set in work.data_sets}
    starts = len({key.contender for key in pending})
    with AnswerBar(starts, sum(sizes[key.dataset] for key in pending)) as progress:
        for group in work.groups:
            waiting = [one for one in group if any(not folder.has(key) for key in work.keys(one))]
            while waiting:
                progress.say("starting")
                began = time.monotonic()
                with side_by_side(waiting, start, meter, work) as together:
                    progress.started(time.monotonic() - began, len(together))
                    waiting = waiting[len(together) :]
                    _measure(work, folder, together, progress)


@dataclass
class Lane:
    """A contender that is running, and the newest figures of it."""

    contender: Contender
    running: Running
    meter: Meter | None
    last: Status | None = None
    prefill: list[StageTimings] | None = None

    def answer(self, prompt: Prompt, temperature: float, max_tokens: int) -> Answer:
        """The answer; a `ConfigError` says whose it is."""
        try:
            return self.running.answer(prompt, temperature, max_tokens)
        except ConfigError as error:
            raise ConfigError(f"{self.contender}, {prompt.dataset}: {error}") from error

    def millijoules(self) -> int:
        """Energy of its devices so far; 0 where they do not tell."""
        return 0 if self.meter is None else self.meter.millijoules()


@contextlib.contextmanager
def side_by_side(waiting: Sequence[Contender], start: Start, meter: MeterOf, work: Work) -> Iterator[list[Lane]]:
    """Starts as many contenders as memory allows, at least one, warms them up, and stops them at the end.

    One is ready before the next is started: an engine that calibrates itself is not to be disturbed by another's start.
    """
    with contextlib.ExitStack() as stack:

        def started(contender: Contender) -> Running:
            running = start(contender)
            stack.callback(running.stop)
            running.wait_until_ready()
            return running

        before = available_host_bytes()
        group = [started(waiting[0])]
        taken = max(before - available_host_bytes(), _LEAST_BYTES)
        room = max(0, int((available_host_bytes() - _SPARE_BYTES) / (_GROUP_MARGIN * taken)))
        group += [started(contender) for contender in waiting[1 : 1 + room]]
        lanes = [Lane(one, running, meter(one)) for one, running in zip(waiting, group, strict=False)]
        _warm_up(lanes, [prompt for data_set in work.data_sets for prompt in data_set.prompts][:_PREFILL_PROMPTS])
        yield lanes


def _warm_up(lanes: Sequence[Lane], prompts: Sequence[Prompt]) -> None:
    """Lets each answer a few prompts, and finds how long each of its stages takes for them."""
    for lane in lanes:
        lane.answer(prompts[0], 0.0, _WARM_UP_TOKENS)
    before = _snapshots(lanes)
    for lane in lanes:
        for prompt in prompts:
            lane.answer(prompt, 0.0, 1)
    for lane, earlier, now in zip(lanes, before, _snapshots(lanes), strict=True):
        if earlier is not None and now is not None:
            lane.last, lane.prefill = now, Counters.of(now).since(Counters.of(earlier)).stages


def _snapshots(lanes: Sequence[Lane]) -> list[Status | None]:
    """Figures of all lanes; each waits for a ping or two, so they do it together."""
    with ThreadPoolExecutor(len(lanes)) as pool:
        return list(pool.map(lambda lane: lane.running.snapshot(), lanes))


def _measure(work: Work, folder: Folder, lanes: Sequence[Lane], progress: AnswerBar) -> None:
    for repeat in range(work.repeats):
        for temperature in work.temperatures:
            for data_set in work.data_sets:
                keys = [CellKey(lane.contender, temperature, data_set.name, repeat) for lane in lanes]
                todo = [(lane, key) for lane, key in zip(lanes, keys, strict=True) if not folder.has(key)]
                if todo:
                    stages = max(key.contender.stages for _, key in todo)
                    progress.say(f"n={stages} T={temperature:g} {data_set.name}")
                    _block(work, folder, todo, data_set, progress)


def _block(
    work: Work, folder: Folder, todo: Sequence[tuple[Lane, CellKey]], data_set: DataSet, progress: AnswerBar
) -> None:
    """One data set at one temperature. The order of the methods turns with every prompt, so that none has a place."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    answers: dict[CellKey, list[Answer]] = {key: [] for _, key in todo}
    energy = dict.fromkeys(answers, 0)
    for number, prompt in enumerate(data_set.prompts):
        shift = number % len(todo)
        for lane, key in [*todo[shift:], *todo[:shift]]:
            began, before = time.monotonic(), lane.millijoules()
            answers[key].append(lane.answer(prompt, key.temperature, work.settings.max_tokens))
            energy[key] += lane.millijoules() - before
            progress.answered(time.monotonic() - began)
    cells = []
    for (lane, key), now in zip(todo, _snapshots([lane for lane, _ in todo]), strict=True):
        earlier, lane.last = lane.last, now
        cells.append(
            Cell(
                key=key,
                answers=answers[key],
                counters=None if now is None or earlier is None else Counters.of(now).since(Counters.of(earlier)),
                prefill=lane.prefill,
                prompt_frames=sum(
                    ceil(answer.computed / work.settings.engine.prefill_chunk) for answer in answers[key]
                ),
                devices=devices(lane.contender, work.settings),
                energy_mj=None if lane.meter is None else energy[key],
                beside=[other.contender for other, _ in todo if other is not lane],
                rehearsal=now is not None and now.info.rehearsal,
                emulated=Emulation() if now is None else now.info.emulated,
                split="" if now is None else ",".join(map(str, now.info.split)),
                date=date,
                git=work.git,
                near_ties=[],
                load=work.load,
            )
        )
    wide = work.settings.engine.tokens_per_frame != 1 or work.settings.engine.tree_width != 1
    rounds = wide or any(lane.contender.how.several for lane, _ in todo)
    known = [*folder.cells(), *cells] if rounds else cells
    for (lane, _), cell in zip(todo, cells, strict=True):
        folder.keep(replace(cell, near_ties=_near_ties(lane, cell, known, data_set, wide=wide)))


def _near_ties(lane: Lane, cell: Cell, known: Sequence[Cell], data_set: DataSet, *, wide: bool) -> list[str]:
    """Asks the contender about answers that differ; what that takes is not counted to the next cell."""
    prompts = {prompt.question: prompt for prompt in data_set.prompts}
    asked = []

    def prefers(branch: Branch) -> bool:
        asked.append(branch)
        return lane.running.prefers(branch, prompts[branch.question], cell.key.temperature)

    found = proven(cell, known, prefers, wide=wide)
    if asked:
        lane.last = lane.running.snapshot()
    return found
