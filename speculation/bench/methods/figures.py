"""The figures of the page, from cells. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from speculation.bench.analysis.cells import Cell
from speculation.bench.analysis.figures import ALL, rows, tokens_per_second
from speculation.bench.configuration import NONE, SINGLE
from speculation.bench.methods.times import draft_ms


class Figures(NamedTuple):
    """One method with one number of stages at one temperature, all data sets together."""

    devices: int
    tokens_per_second: float
    least: float  # of the data sets and repeats
    most: float
    acceptance: float | None
    tokens_a_miss: float | None  # AL
    per_cycle: float | None
    E: float | None
    over_plain: float | None
    over_one_device: float | None
    draft_ms: float | None
    differing: int  # answers that are not the reference's, near-ties not counted
    near_ties: int


Place = tuple[str, int, float]  # method, stages, temperature


def figures(cells: Sequence[Cell]) -> dict[Place, Figures]:
    """Of cells that were measured under the same settings."""
    names = {cell.key.dataset for cell in cells}
    table = {
        (row.method, row.stages, row.temperature): row for row in rows(cells) if row.dataset == ALL or len(names) == 1
    }
    speeds: dict[Place, list[float]] = {}
    for cell in cells:
        speeds.setdefault(_place(cell), []).append(tokens_per_second(cell.answers))
    found = {}
    for place, row in table.items():
        _, stages, temperature = place
        plain, alone = table.get((NONE, stages, temperature)), table.get((SINGLE, 1, temperature))
        right = (row.acceptance or 0.0) * (row.coverage or 0.0)  # tokens that were right drafts, of all
        speed = row.tokens_per_second
        found[place] = Figures(
            devices=row.devices,
            tokens_per_second=speed,
            least=min(speeds[place]),
            most=max(speeds[place]),
            acceptance=row.acceptance,
            tokens_a_miss=None if row.acceptance is None or right >= 1 else 1 / (1 - right),
            per_cycle=row.tokens_per_cycle,
            E=row.E,
            over_plain=speed / plain.tokens_per_second if plain and plain.tokens_per_second else None,
            over_one_device=speed / alone.tokens_per_second if alone and alone.tokens_per_second else None,
            draft_ms=draft_ms([cell for cell in cells if _place(cell) == place]),
            differing=row.differing - row.near_ties,
            near_ties=row.near_ties,
        )
    return found


def _place(cell: Cell) -> Place:
    return (cell.key.contender.method, cell.key.contender.stages, cell.key.temperature)
