"""Lines of the table of cycle costs."""

from collections.abc import Iterable

from speculation.bench.cycle_cost.bare import Bare
from speculation.bench.cycle_cost.point import MeasuredPoint, Point
from speculation.bench.cycle_cost.processor_time import ROLES

HEADER = (
    "n", "stage ms", "method", "acceptance", "δ", "m", "tokens/cycle", "law", "tok/s", "ideal", "share", "of bare",
    "cycle ms", "fixed ms", *(f"{role} CPU" for role in ROLES), "compute", "asleep", "send", "receive", "idle",
)  # fmt: skip


def line(point: Point, measured: MeasuredPoint, bare: Bare | None) -> list[str]:
    """One point; `bare` is the same without an engine. CPU in milliseconds a token; shares are means over stages."""
    row = measured.row
    shares = row.stage_shares or []
    ideal = point.ideal(row.acceptance)

    def mean(values: Iterable[float]) -> str:
        return f"{100 * sum(values) / len(shares):.1f} %"

    return [
        str(point.stages),
        f"{point.stage_ms:g}",
        row.method,
        "–" if row.acceptance is None else f"{row.acceptance:.3f}",
        str(point.delta),
        str(point.width),
        "–" if row.tokens_per_cycle is None else f"{row.tokens_per_cycle:.3f}",
        f"{point.law(row.acceptance):.3f}",
        f"{row.tokens_per_second:.1f}",
        f"{ideal:.1f}",
        f"{100 * row.tokens_per_second / ideal:.1f} %",
        "–" if bare is None else f"{100 * row.tokens_per_second / bare.tokens_per_second:.1f} %",
        "–" if row.cycle_ms is None else f"{row.cycle_ms:.3f}",
        "–" if row.cycle_ms is None else f"{row.cycle_ms - point.stage_ms:.3f}",
        *(f"{measured.cpu_ms[role]:.3f}" if role in measured.cpu_ms else "–" for role in ROLES),
        mean(stage.forward + stage.sample for stage in shares),
        mean(stage.emulate for stage in shares),
        mean(stage.send for stage in shares),
        mean(stage.receive for stage in shares),
        mean(stage.idle for stage in shares),
    ]


def bare_line(point: Point, bare: Bare) -> list[str]:
    """The yardstick for `point`."""
    ideal = point.ideal(point.acceptance)
    cells = [
        str(point.stages),
        f"{point.stage_ms:g}",
        "bare",
        "–" if point.acceptance is None else f"{point.acceptance:.3f}",
        str(point.delta),
        str(point.width),
        "–",
        f"{point.law(point.acceptance):.3f}",
        f"{bare.tokens_per_second:.1f}",
        f"{ideal:.1f}",
        f"{100 * bare.tokens_per_second / ideal:.1f} %",
        "100 %",
        "–",
        "–",
        f"{bare.cpu_ms:.3f}",
    ]
    return cells + ["–"] * (len(HEADER) - len(cells))
