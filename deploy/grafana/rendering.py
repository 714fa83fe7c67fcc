"""Renders dashboards as the JSON of Grafana."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

#: Unit of a panel -> unit of Grafana.
UNITS = {
    "cores": "short",
    "bytes": "bytes",
    "bytes per second": "Bps",
    "share": "percentunit",
    "count": "short",
    "per second": "ops",
    "watts": "watt",
    "watt hours": "watth",
    "seconds per second": "percentunit",
    "celsius": "celsius",
    "seconds": "s",
}


class Target(NamedTuple):
    expression: str
    legend: str


class Panel(NamedTuple):
    title: str
    unit: str
    targets: tuple[Target, ...]
    kind: str = "timeseries"
    help: str = ""


class Dashboard(NamedTuple):
    name: str
    title: str
    #: Variable -> the query of its values.
    variables: dict[str, str]
    panels: tuple[Panel, ...]


def render(dashboard: Dashboard) -> str:
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels, x, y, row_height = [], 0, 0, 0
    for panel_id, panel in enumerate(dashboard.panels, 1):
        width, height = (6, 4) if panel.kind == "stat" else (12, 8)
        if x + width > 24:
            x, y = 0, y + row_height
        panels.append(
            {
                "id": panel_id,
                "type": panel.kind,
                "title": panel.title,
                "description": panel.help,
                "datasource": source,
                "gridPos": {"x": x, "y": y, "w": width, "h": height},
                "fieldConfig": {"defaults": {"unit": UNITS[panel.unit]}, "overrides": []},
                "targets": [
                    {
                        "refId": chr(ord("A") + index),
                        "datasource": source,
                        "expr": target.expression,
                        "legendFormat": target.legend or "__auto",
                    }
                    for index, target in enumerate(panel.targets)
                ],
            }
        )
        x, row_height = x + width, height
    document: dict[str, Any] = {
        "uid": f"jobsight-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["jobsight"],
        "schemaVersion": 37,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), *map(_variable, dashboard.variables.items())]},
        "links": [
            {"type": "dashboards", "tags": ["jobsight"], "asDropdown": True, "title": "jobsight"}
        ],
        "panels": panels,
    }
    return json.dumps(document, indent=1) + "\n"


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "source"}


def _variable(item: tuple[str, str]) -> dict[str, Any]:
    name, query = item
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 3,
    }
