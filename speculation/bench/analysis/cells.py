"""Measurements as they are kept: one file a cell, so that an interrupted bench goes on where it stopped."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from speculation.bench.analysis.counters import Counters
from speculation.bench.configuration import BenchSettings, Contender
from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError
from workers.shared.messages import StageTimings


class CellKey(msgspec.Struct, frozen=True, order=True):
    """One contender on one data set at one temperature, once."""

    contender: Contender
    temperature: float
    dataset: str
    repeat: int

    @property
    def file_name(self) -> str:
        """Unique among the cells of a folder."""
        one, digest = self.contender, hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:8]
        return f"{one.method}-n{one.stages}-t{self.temperature:g}-{self.dataset}-{self.repeat}-{digest}.json"


class Answer(msgspec.Struct, frozen=True):
    """One streamed answer."""

    question: str
    prompt_ids: list[int]
    tokens: list[int]  # with the end token, if it came
    times_us: list[int]  # since the request was sent; one a token, microseconds
    cached: int = 0  # prompt tokens that were not computed again

    @property
    def computed(self) -> int:
        """Prompt tokens that were computed."""
        return len(self.prompt_ids) - self.cached


class Cell(msgspec.Struct, frozen=True):
    """Everything measured of one `CellKey`."""

    key: CellKey
    answers: list[Answer]
    counters: Counters | None  # what the engine counted meanwhile; None for Hugging Face
    prefill: list[StageTimings] | None  # a stage: its time for prompts alone, in the warm-up
    prompt_frames: int  # that were computed for the prompts of the answers
    devices: int
    energy_mj: int | None  # of its devices, while it answered; None where they do not tell
    beside: list[Contender]  # measured prompt by prompt in turn with these
    rehearsal: bool
    emulated: Emulation
    split: str  # layers a stage
    date: str  # ISO 8601, UTC
    git: str
    near_ties: list[str]  # questions whose answers were proven to differ from the reference by a near-tie
    load: float  # of the machine, one-minute average, before the bench that made this cell began


class _Kept(msgspec.Struct, frozen=True):
    settings: BenchSettings
    data: dict[str, str]


class Folder:
    """The output folder: `settings.json`, `cells/` and `logs/`."""

    def __init__(self, path: Path, settings: BenchSettings, data: dict[str, str]) -> None:
        """Opens or creates the folder. Raises `ConfigError` where it holds cells of other settings or prompts.

        `data` are the digests of the data sets, by name.
        """
        self.path = path
        self.logs = path / "logs"
        self._cells = path / "cells"
        for folder in (self.logs, self._cells):
            folder.mkdir(parents=True, exist_ok=True)
        file = path / "settings.json"
        if not file.exists():
            file.write_bytes(msgspec.json.format(msgspec.json.encode(_Kept(settings, data))) + b"\n")
            return
        try:
            kept = msgspec.json.decode(file.read_bytes(), type=_Kept)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{file}: {error}; choose another folder with --out") from error
        for was, now in ((kept.settings.described(), settings.described()), (kept.data, data)):
            for name in sorted({*was, *now}):
                if was.get(name) != now.get(name):
                    raise ConfigError(
                        f"--out {path}: holds results for {name} {was.get(name)}, not {now.get(name)}; choose another "
                        f"folder, or the same options and prompts to go on"
                    )

    def has(self, key: CellKey) -> bool:
        """Whether this cell is done."""
        return (self._cells / key.file_name).exists()

    def keep(self, cell: Cell) -> None:
        """Stores a cell that is complete."""
        file = self._cells / cell.key.file_name
        fresh = file.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(cell))
        fresh.replace(file)

    def cells(self) -> Iterator[Cell]:
        """All cells, in order of their files; raises `ConfigError` naming one that cannot be read."""
        for file in sorted(self._cells.glob("*.json")):
            try:
                yield msgspec.json.decode(file.read_bytes(), type=Cell)
            except msgspec.MsgspecError as error:
                raise ConfigError(f"{file}: {error}; delete it to measure it again") from error
