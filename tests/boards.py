"""Grafana's dashboards, declared: `python -m tests.boards` writes them into deploy/grafana/dashboards/."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards"
_WIDTH = 24  # columns of Grafana's grid
_SOURCE = {"type": "prometheus", "uid": "prometheus"}
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


_FOUR = (0.5, 0.9, 0.95, 0.99)
_JUDGED = f"({rate('speculation_accepted_total')} + {rate('speculation_rejected_total')})"
ACCEPTANCE = f"{rate('speculation_accepted_total')} / {_JUDGED}"
PER_CYCLE = f"{rate('generation_tokens_total')} / {rate('speculation_cycles_total')}"
_ENGINE_UP = Panel("Engine", [(gauge("engine_up"), "")], text="1: it answers", kind="stat", width=4, height=4)


def _stat(title: str, query: str, unit: str = "short", text: str = "") -> Panel:
    return Panel(title, [(query, "")], unit, text, "stat", width=4, height=4)


USERS = [
    Row(
        "Now",
        [
            _ENGINE_UP,
            _stat("First token, median", quantiles("time_to_first_token_seconds", 0.5)[0][0], "s"),
            _stat("Between tokens, median", quantiles("inter_token_latency_seconds", 0.5)[0][0], "s"),
            _stat("Tokens a second", f"sum({rate('generation_tokens_total')})"),
            _stat("Running", f"sum({gauge('num_requests_running')})"),
            _stat("Waiting", f"sum({gauge('num_requests_waiting')})"),
        ],
    ),
    Row(
        "Latency",
        [
            Panel(
                "Time to first token",
                quantiles("time_to_first_token_seconds", *_FOUR),
                "s",
                "From the arrival of a request to its first token",
            ),
            Panel("Between tokens", quantiles("inter_token_latency_seconds", *_FOUR), "s"),
            Panel(
                "Whole requests",
                quantiles("e2e_request_latency_seconds", *_FOUR),
                "s",
                "From the arrival of a request to its last token",
            ),
        ],
    ),
    Row(
        "Where the time goes",
        [
            Panel("Queue", quantiles("request_queue_time_seconds", *_FOUR), "s", "Until a choice had a slot"),
            Panel("Prefill", quantiles("request_prefill_time_seconds", *_FOUR), "s", "From there to its first token"),
            Panel("Decode", quantiles("request_decode_time_seconds", *_FOUR), "s", "From its first token to its last"),
            Panel(
                "Mean of each phase",
                [(mean(f"request_{phase}_time_seconds"), phase) for phase in ("queue", "prefill", "decode")],
                "s",
                stacked=True,
            ),
            Panel("Time of a token", quantiles("request_time_per_output_token_seconds", *_FOUR), "s", "Mean, a choice"),
            Panel("Places in the queue", quantiles("request_queue_position", 0.5, 0.99), "short", "On arrival"),
        ],
    ),
    Row(
        "Load",
        [
            Panel(
                "Tokens a second",
                [
                    (f"sum({rate('generation_tokens_total')})", "generated"),
                    (f"sum({rate('prompt_tokens_total')})", "of prompts"),
                ],
            ),
            Panel(
                "Requests",
                [
                    (f"sum({gauge('num_requests_running')})", "running"),
                    (f"sum({gauge('num_requests_waiting')})", "waiting"),
                    (f"sum({gauge('open_sequences')})", "opened by the server"),
                ],
            ),
            Panel(
                "Ends and refusals a second",
                [
                    (f"sum by (finished_reason) ({rate('request_success_total')})", "{{finished_reason}}"),
                    (f"sum by (status) ({rate('request_refused_total')})", "HTTP {{status}}"),
                ],
            ),
            Panel("KV cache in use", [(gauge("kv_cache_usage_perc"), "")], "percentunit", "By running requests"),
            Panel(
                "Prompt tokens held already",
                [(f"{rate('prefix_cache_hits_total')} / {rate('prefix_cache_queries_total')}", "")],
                "percentunit",
                "Not computed again",
            ),
            Panel("Taken up again a second", [(rate("resumed_sequences_total"), "")], "short", "In another engine"),
        ],
    ),
    Row(
        "Lengths",
        [
            Panel("Prompt tokens", lengths("request_prompt_tokens"), kind="heatmap", width=12, height=8),
            Panel("Generated tokens", lengths("request_generation_tokens"), kind="heatmap", width=12, height=8),
        ],
    ),
]

_STAGE = "stage {{stage}}"
_BUSY = 'phase=~"forward|sample|emulate|send"'
_COMPUTED = 'outcome="computed"'


def _per_stage(phase: str) -> list[tuple[str, str]]:
    return [(f"sum by (stage) ({rate('stage_seconds_total', f'phase={phase}')})", _STAGE)]


PIPELINE = [
    Row(
        "Now",
        [
            _ENGINE_UP,
            _stat("Tokens per cycle", PER_CYCLE, text="1 is what each cycle could yield with all drafts right"),
            _stat("Drafts accepted", ACCEPTANCE, "percentunit"),
            _stat("Full cycle", gauge("cycle_seconds"), "s", "When the pipeline was last full"),
            Panel(
                "Configuration",
                [(gauge("engine_info"), "{{stages}} stages of {{split}} layers, {{drafter}}")],
                kind="stat",
                height=4,
            ),
        ],
    ),
    Row(
        "Stages",
        [
            Panel(
                "Busy",
                [(f"sum by (stage) ({rate('stage_seconds_total', _BUSY)})", _STAGE)],
                "percentunit",
                "Share of the time spent on frames",
            ),
            Panel("Idle", _per_stage('"idle"'), "percentunit", "No frame to work on"),
            Panel("Waiting for hidden states", _per_stage('"receive"'), "percentunit"),
            Panel(
                "Time of a frame",
                [
                    (
                        f"sum by (stage) ({rate('stage_seconds_total', _BUSY)}) / "
                        f"sum by (stage) ({rate('stage_frames_total', _COMPUTED)})",
                        _STAGE,
                    )
                ],
                "s",
            ),
            Panel(
                "Frames a second",
                [(f"sum by (stage, outcome) ({rate('stage_frames_total')})", "stage {{stage}}, {{outcome}}")],
            ),
            Panel("Tokens a second", [(f"sum by (stage) ({rate('stage_tokens_total')})", _STAGE)]),
        ],
    ),
    Row(
        "Cycle",
        [
            Panel(
                "Full cycle and its fixed cost",
                [(gauge("cycle_seconds"), "cycle"), (gauge("fixed_cost_seconds"), "beyond the slowest stage")],
                "s",
            ),
            Panel(
                "Rank 0, a cycle",
                [
                    (f"{rate('commit_seconds_total')} / {rate('speculation_cycles_total')}", "samples"),
                    (f"{rate('announce_seconds_total')} / {rate('speculation_cycles_total')}", "announcements"),
                    (f"{rate('draft_seconds_total')} / {rate('speculation_cycles_total')}", "drafts"),
                ],
                "s",
            ),
            Panel(
                "Frames in flight",
                [(f"sum by (kind) ({gauge('credits_in_use')})", "{{kind}}")],
                text="With verified tokens, drafts, or pieces of prompts",
                stacked=True,
            ),
        ],
    ),
    Row(
        "Drafts",
        [
            Panel("Accepted", [(ACCEPTANCE, "of those judged")], "percentunit"),
            Panel(
                "Accepted, by depth",
                [
                    (
                        f"sum by (depth) ({rate('speculation_accepted_by_depth_total')}) / "
                        f"sum by (depth) ({rate('speculation_judged_by_depth_total')})",
                        "draft {{depth}}",
                    )
                ],
                "percentunit",
                "Of drafts made as the first, second... after the newest verified token; its own ancestors being right",
            ),
            Panel("Tokens per cycle", [(PER_CYCLE, "")]),
            Panel(
                "Drafts a second",
                [(rate(f"speculation_{end}_total"), end) for end in ("accepted", "rejected", "discarded")],
                stacked=True,
            ),
            Panel(
                "Right token among the first candidates",
                [
                    (
                        f"sum by (candidates) ({rate('speculation_hits_total')}) / on () group_left () "
                        f"sum({rate('speculation_ranked_total')})",
                        "of {{candidates}}",
                    )
                ],
                "percentunit",
                "hit@W",
            ),
            Panel(
                "Discarded work",
                [(f"{rate('speculation_discarded_total')} / {rate('speculation_drafted_total')}", "")],
                "percentunit",
                "Drafts that were never judged",
            ),
            Panel("Time of a draft", [(f"{rate('draft_seconds_total')} / {rate('drafts_total')}", "")], "s"),
            Panel("What drafts", [(gauge("speculation_choice"), "{{drafter}}")], text="1: in use"),
            Panel(
                "What each choice should do",
                [(gauge("speculation_predicted_tokens_per_second"), "{{drafter}}")],
                text="Tokens a second",
            ),
            Panel(
                "Changes, trials and failures a second",
                [
                    (rate("speculation_switches_total"), "changes"),
                    (rate("speculation_probes_total"), "trials"),
                    (rate("drafter_failures_total"), "failures"),
                ],
            ),
        ],
    ),
    Row(
        "Memory and messages",
        [
            Panel("KV positions", [(f"sum by (use) ({gauge('kv_cache_positions')})", "{{use}}")], stacked=True),
            Panel("Messages that could not be read, a second", [(rate("dropped_messages_total"), "")]),
            Panel(
                "Engines begun anew",
                [("sum(resets(" + gauge("stage_seconds_total", 'phase="idle", stage="0"') + "[$__range]))", "")],
                text="In the time shown",
            ),
        ],
    ),
    Row(
        "Devices (NVIDIA; of the API server's host)",
        [
            Panel("Computing", [(gauge("device_utilization_ratio"), "{{device}} {{device_name}}")], "percentunit"),
            Panel("Memory in use", [(gauge("device_memory_used_bytes"), "{{device}} {{device_name}}")], "bytes"),
            Panel("Power", [(gauge("device_power_watts"), "{{device}} {{device_name}}")], "watt"),
            Panel("Temperature", [(gauge("device_temperature_celsius"), "{{device}} {{device_name}}")], "celsius"),
            Panel(
                "Links", [(gauge("device_link_bytes_per_second"), "{{device}} {{direction}}")], "Bps", "PCIe", width=16
            ),
        ],
    ),
]
BOARDS = {"users": ("Echelon: what users see", USERS), "pipeline": ("Echelon: the pipeline", PIPELINE)}


def board(name: str) -> dict[str, Any]:
    """A dashboard as Grafana reads it."""
    title, rows = BOARDS[name]
    panels: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        panels.append({"type": "row", "title": row.title, "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1}})
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > _WIDTH:
                x, y = 0, y + height
            panels.append(_panel(panel, x, y))
            x, height = x + panel.width, panel.height
        y += height
    for number, panel_json in enumerate(panels, 1):
        panel_json["id"] = number
    return {
        "uid": f"echelon-{name}",
        "title": title,
        "tags": ["echelon"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["echelon"], "title": "Echelon"}],
        "templating": {"list": [_model_variable()]},
        "panels": panels,
    }


def _model_variable() -> dict[str, Any]:
    return {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(echelon:engine_up, model_name)",
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel, x: int, y: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }
    if panel.kind == "stat":
        named = {"textMode": "name"} if panel.title == "Configuration" else {}
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, **named}
    if panel.kind == "timeseries":
        made["options"] = {"legend": {"showLegend": True}, "tooltip": {"mode": "multi"}}
        if panel.stacked:
            made["fieldConfig"]["defaults"]["custom"] = {"stacking": {"mode": "normal"}, "fillOpacity": 40}
    if panel.kind == "heatmap":
        for target in made["targets"]:
            target["format"] = "heatmap"
        made["options"] = {"calculate": False, "yAxis": {"unit": panel.unit}}
    return made


def written(name: str) -> str:
    """The file of a dashboard."""
    return json.dumps(board(name), indent=1) + "\n"


if __name__ == "__main__":
    for each in BOARDS:
        (FOLDER / f"{each}.json").write_text(written(each))
