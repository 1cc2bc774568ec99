"""What a panel is, and the queries that panels share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_MODEL = 'model_name=~"$model"'

Kind = Literal["stat", "timeseries", "heatmap"]


@dataclass(frozen=True)
class Panel:
    """One picture; `queries` are PromQL with the legend of each."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    text: str = ""
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 7
    stacked: bool = False


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: Sequence[Panel]


def rate(metric: str, labels: str = "") -> str:
    """Of a counter, a second."""
    return f"rate(echelon:{metric}{{{_labels(labels)}}}[$__rate_interval])"


def gauge(metric: str, labels: str = "") -> str:
    """As it is."""
    return f"echelon:{metric}{{{_labels(labels)}}}"


def quantiles(metric: str, *wanted: float) -> list[tuple[str, str]]:
    """Of a histogram."""
    buckets = f"sum by (le) ({rate(f'{metric}_bucket')})"
    return [(f"histogram_quantile({share:g}, {buckets})", f"p{100 * share:g}") for share in wanted]


def mean(metric: str) -> str:
    """Of a histogram."""
    return f"sum({rate(f'{metric}_sum')}) / sum({rate(f'{metric}_count')})"


def lengths(metric: str) -> list[tuple[str, str]]:
    """For a heat map."""
    return [(f"sum by (le) (increase(echelon:{metric}_bucket{{{_labels()}}}[$__rate_interval]))", "{{le}}")]


def _labels(more: str = "") -> str:
    return ", ".join(filter(None, (_MODEL, more)))


FOUR = (0.5, 0.9, 0.95, 0.99)
_JUDGED = f"({rate('speculation_accepted_total')} + {rate('speculation_rejected_total')})"
ACCEPTANCE = f"{rate('speculation_accepted_total')} / {_JUDGED}"
PER_CYCLE = f"{rate('generation_tokens_total')} / {rate('speculation_cycles_total')}"
ENGINE_UP = Panel("Engine", [(gauge("engine_up"), "")], text="1: it answers", kind="stat", width=4, height=4)


def stat(title: str, query: str, unit: str = "short", text: str = "") -> Panel:
    return Panel(title, [(query, "")], unit, text, "stat", width=4, height=4)
