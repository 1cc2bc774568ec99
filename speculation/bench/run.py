"""Runs what is not done yet: contenders side by side, prompt by prompt in turn."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from speculation.bench.cells import Answer, Cell, CellKey, Folder
from speculation.bench.configuration import Contender
from speculation.bench.counters import Snapshot
from speculation.bench.figures import computing_ns
from speculation.bench.processes import Running
from speculation.bench.prompts import DataSet, Prompt
from workers.emulation import Emulation
from workers.errors import ConfigError

_WARM_UP_TOKENS = 16
_PREFILL_PROMPTS = 4
_SPARE_BYTES = 2**30
_GROUP_MARGIN = 1.5  # groups grow while they answer, and a draft module comes on top
_LEAST_BYTES = 2**28  # of a group, should something else have freed memory meanwhile

Start = Callable[[Contender], Running]


@dataclass(frozen=True)
class Work:
    """What a bench consists of."""

    groups: Sequence[Sequence[Contender]]  # side by side
    temperatures: Sequence[float]
    data_sets: Sequence[DataSet]
    repeats: int
    max_tokens: int
    git: str
    load: float  # one-minute average before the bench began

    def keys(self, contender: Contender) -> Iterator[CellKey]:
        """All cells of a contender, in order."""
        for repeat in range(self.repeats):
            for temperature in self.temperatures:
                for data_set in self.data_sets:
                    yield CellKey(contender, temperature, data_set.name, repeat)


def run(work: Work, folder: Folder, start: Start) -> None:
    """Measures every cell that `folder` lacks. Raises `ConfigError` where a contender fails."""
    pending = [key for group in work.groups for one in group for key in work.keys(one) if not folder.has(key)]
    sizes = {data_set.name: len(data_set.prompts) for data_set in work.data_sets}
    with tqdm(total=sum(sizes[key.dataset] for key in pending), unit="answer", smoothing=0.05) as progress:
        for group in work.groups:
            waiting = [one for one in group if any(not folder.has(key) for key in work.keys(one))]
            while waiting:
                progress.set_description("starting")
                with _side_by_side(waiting, start, work) as together:
                    waiting = waiting[len(together) :]
                    _measure(work, folder, together, progress)


@dataclass
class _Lane:
    """A contender that is running, and the newest figures of it."""

    contender: Contender
    running: Running
    last: Snapshot | None
    prefill_ns: list[float] | None


@contextlib.contextmanager
def _side_by_side(waiting: Sequence[Contender], start: Start, work: Work) -> Iterator[list[_Lane]]:
    """Starts as many contenders as memory allows, at least one, and stops them at the end."""
    prompts = [prompt for data_set in work.data_sets for prompt in data_set.prompts][:_PREFILL_PROMPTS]
    with contextlib.ExitStack() as stack:

        def started(contender: Contender) -> Running:
            running = start(contender)
            stack.callback(running.stop)
            return running

        before = available_bytes()
        group = [started(waiting[0])]
        group[0].wait_until_ready()
        taken = max(before - available_bytes(), _LEAST_BYTES)
        room = max(0, int((available_bytes() - _SPARE_BYTES) / (_GROUP_MARGIN * taken)))
        group += [started(contender) for contender in waiting[1 : 1 + room]]
        for running in group:
            running.wait_until_ready()
        yield [_warm_up(contender, running, prompts) for contender, running in zip(waiting, group, strict=False)]


def _warm_up(contender: Contender, running: Running, prompts: Sequence[Prompt]) -> _Lane:
    """Answers a few prompts, and finds how long each stage takes for a prompt token."""
    _answer(contender, running, prompts[0], 0.0, _WARM_UP_TOKENS)
    before = running.snapshot()
    for prompt in prompts:
        _answer(contender, running, prompt, 0.0, 1)
    after = running.snapshot()
    if before is None or after is None:
        return _Lane(contender, running, None, None)
    spent = after.counters.since(before.counters).stages
    return _Lane(contender, running, after, [computing_ns(stage) / max(1, stage.tokens) for stage in spent])


def _answer(contender: Contender, running: Running, prompt: Prompt, temperature: float, max_tokens: int) -> Answer:
    """The answer; a `ConfigError` says whose it is."""
    try:
        return running.answer(prompt, temperature, max_tokens)
    except ConfigError as error:
        raise ConfigError(f"{contender}, {prompt.dataset}: {error}") from error


def _measure(work: Work, folder: Folder, lanes: Sequence[_Lane], progress: "tqdm[Any]") -> None:
    for repeat in range(work.repeats):
        for temperature in work.temperatures:
            for data_set in work.data_sets:
                keys = [CellKey(lane.contender, temperature, data_set.name, repeat) for lane in lanes]
                todo = [(lane, key) for lane, key in zip(lanes, keys, strict=True) if not folder.has(key)]
                if todo:
                    progress.set_description(
                        f"n={max(key.contender.stages for _, key in todo)} T={temperature:g} {data_set.name}"
                    )
                    _block(work, folder, todo, data_set, progress)


def _block(
    work: Work,
    folder: Folder,
    todo: Sequence[tuple[_Lane, CellKey]],
    data_set: DataSet,
    progress: "tqdm[Any]",
) -> None:
    """One data set at one temperature. The order of the methods turns with every prompt, so that none has a place."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    answers: dict[CellKey, list[Answer]] = {key: [] for _, key in todo}
    for number, prompt in enumerate(data_set.prompts):
        shift = number % len(todo)
        for lane, key in [*todo[shift:], *todo[:shift]]:
            answers[key].append(_answer(lane.contender, lane.running, prompt, key.temperature, work.max_tokens))
            progress.update()
    with ThreadPoolExecutor(len(todo)) as pool:  # each waits for a ping or two
        snapshots = list(pool.map(lambda pair: pair[0].running.snapshot(), todo))
    for (lane, key), now in zip(todo, snapshots, strict=True):
        before, lane.last = lane.last, now
        folder.keep(
            Cell(
                key=key,
                answers=answers[key],
                counters=None if now is None or before is None else now.counters.since(before.counters),
                prefill_ns=lane.prefill_ns,
                beside=[other.contender for other, _ in todo if other is not lane],
                rehearsal=now is not None and now.rehearsal,
                emulated=Emulation() if now is None else now.emulated,
                split="" if now is None else now.split,
                date=date,
                git=work.git,
                load=work.load,
            )
        )


def available_bytes() -> int:
    """Memory that new processes could have."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise ConfigError("/proc/meminfo has no MemAvailable; echelon bench needs Linux")
