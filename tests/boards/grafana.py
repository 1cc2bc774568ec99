"""Boards as Grafana reads them."""

import json
from pathlib import Path
from typing import Any

from tests.boards.panels import Panel
from tests.boards.pipeline import PIPELINE
from tests.boards.users import USERS

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
_WIDTH = 24  # columns of Grafana's grid
_SOURCE = {"type": "prometheus", "uid": "prometheus"}
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
