"""What the plots show, from the rows of the table. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import asdict

from speculation.bench.analysis.figures import ALL, TableRow
from speculation.bench.configuration import METHODS
from speculation.simulate.pipeline import speed_law

_RANK_PARTS = ("announce", "commit", "draft")


class Bar(NamedTuple):
    """One contender's mean cycle, milliseconds by part: its slowest stage's and, at the same time, rank 0's."""

    label: str
    stage: dict[str, float]
    rank: dict[str, float]


class Series(NamedTuple):
    """Points in order of x."""

    label: str
    points: list[tuple[float, float]]


def breakdown(rows: Sequence[TableRow]) -> list[Bar]:
    """A bar for each contender and temperature that has parts, all data sets together."""
    bars = []
    for row in _totals(rows):
        if row.cycle_parts is not None:
            parts = asdict(row.cycle_parts)
            rank = {name: parts.pop(name) for name in _RANK_PARTS}
            bars.append(Bar(f"{row.method}, n={row.stages}, T={row.temperature:g}", parts, rank))
    return bars


def speedup_by_stages(rows: Sequence[TableRow]) -> list[Series]:
    """For each method and temperature: number of stages, and speed-up over the plain pipeline with as many."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in _totals(rows):
        if row.speedup_none is not None:
            found.setdefault(f"{row.method}, T={row.temperature:g}", []).append((row.stages, row.speedup_none))
    return [Series(label, sorted(points)) for label, points in found.items()]


def speedup_by_acceptance(rows: Sequence[TableRow]) -> list[Series]:
    """For each method and number of stages: acceptance and speed-up, a point a data set and temperature.

    Frames of several tokens follow another law and are left out.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        drawn = row.dataset != ALL and not METHODS[row.method].several
        if drawn and row.acceptance is not None and row.speedup_none is not None:
            found.setdefault(f"{row.method}, n={row.stages}", []).append((row.acceptance, row.speedup_none))
    return [Series(label, sorted(points)) for label, points in found.items()]


def law(rows: Sequence[TableRow], points: int = 101) -> list[Series]:
    """For each number of stages with drafts: n/(1+(n-1)(1-a)), the speed-up if nothing but the stages took time."""
    stages = sorted({row.stages for row in rows if row.acceptance is not None and not METHODS[row.method].several})
    steps = [step / (points - 1) for step in range(points)]
    return [Series(f"law, n={count}", [(a, count * speed_law(count, a)) for a in steps]) for count in stages]


def emulation(rows: Sequence[TableRow]) -> str:
    """What every plot has to say of times that were made up; empty where none was."""
    told = dict.fromkeys(str(row.emulated) for row in rows if row.emulated)
    return f"emulated: {'; '.join(told)}" if told else ""


def _totals(rows: Sequence[TableRow]) -> list[TableRow]:
    """One row for each contender and temperature: that of all data sets, or of the only one."""
    found: dict[tuple[str, int, float], TableRow] = {}
    for row in rows:
        key = (row.method, row.stages, row.temperature)
        if key not in found or row.dataset == ALL:
            found[key] = row
    return sorted(found.values(), key=lambda row: (row.stages, row.temperature, row.method))
