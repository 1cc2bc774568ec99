"""Draws plots with matplotlib, which comes with the extra `bench`."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from speculation.bench.analysis.curves import (
    Bar,
    Series,
    breakdown,
    emulation,
    law,
    speedup_by_acceptance,
    speedup_by_stages,
)
from speculation.bench.analysis.figures import TableRow

_FORMATS = ("png", "svg")
_BAR_HEIGHT = 0.4
_SIZE = (8.0, 5.0)  # inches


def draw_all(rows: Sequence[TableRow], folder: Path) -> list[Path]:
    """Writes each plot for which there is something to draw; returns the files."""
    note = emulation(rows)
    files = []
    if bars := breakdown(rows):
        files += _save(folder / "cycle_breakdown", note, lambda axes: _draw_breakdown(axes, bars), len(bars))
    if series := speedup_by_stages(rows):
        files += _save(folder / "speedup_by_stages", note, lambda axes: _draw_by_stages(axes, series))
    if points := speedup_by_acceptance(rows):
        files += _save(
            folder / "speedup_by_acceptance", note, lambda axes: _draw_by_acceptance(axes, points, law(rows))
        )
    return files


def _save(path: Path, note: str, draw: Callable[[Axes], None], bars: int = 0) -> list[Path]:
    figure = Figure(figsize=(_SIZE[0], max(_SIZE[1], 1.5 + 0.5 * bars)), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    if note:
        axes.set_title(note)
    files = [path.with_suffix(f".{kind}") for kind in _FORMATS]
    for file in files:
        figure.savefig(file, dpi=150)
    return files


def _draw_breakdown(axes: Axes, bars: Sequence[Bar]) -> None:
    """Two lines a contender: its slowest stage, and rank 0 below it."""
    names = [*bars[0].stage, *bars[0].rank]
    for place, name in enumerate(names):
        lines, widths, lefts = [], [], []
        for line, bar in enumerate(bars):
            parts, offset = (bar.stage, 0.0) if name in bar.stage else (bar.rank, _BAR_HEIGHT)
            before = list(parts)[: list(parts).index(name)]
            lines.append(line + offset)
            widths.append(parts[name])
            lefts.append(sum(parts[other] for other in before))
        axes.barh(lines, widths, _BAR_HEIGHT, left=lefts, label=name, color=f"C{place}")
    axes.set_yticks([line + _BAR_HEIGHT / 2 for line in range(len(bars))], [bar.label for bar in bars])
    axes.invert_yaxis()
    axes.set_xlabel("mean cycle, ms: slowest stage, and rank 0 below it")
    axes.legend(ncols=5, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.1))


def _draw_by_stages(axes: Axes, series: Sequence[Series]) -> None:
    for one in series:
        axes.plot(*zip(*one.points, strict=True), marker="o", label=one.label)
    stages = sorted({x for one in series for x, _ in one.points})
    axes.plot(stages, stages, linestyle=":", color="grey", label="every draft right")
    axes.set_xticks(stages)
    axes.set_xlabel("stages, n")
    axes.set_ylabel("speed-up over the plain pipeline")
    axes.legend(fontsize="small")


def _draw_by_acceptance(axes: Axes, series: Sequence[Series], laws: Sequence[Series]) -> None:
    for one in laws:
        axes.plot(*zip(*one.points, strict=True), linestyle=":", label=one.label)
    for one in series:
        axes.scatter(*zip(*one.points, strict=True), label=one.label)
    axes.set_xlabel("acceptance, a")
    axes.set_ylabel("speed-up over the plain pipeline")
    axes.legend(fontsize="small")
