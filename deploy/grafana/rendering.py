"""A dashboard as Grafana reads it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

#: Base unit in the name -> Grafana's unit.
UNITS = {
    "cores": "short",
    "bytes": "bytes",
    "bytes per second": "Bps",
    "share": "percentunit",
    "count": "short",
    "per second": "ops",
    "watts": "watt",
    "seconds per second": "percentunit",
    "celsius": "celsius",
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
    #: Name of a variable -> the query that gives its values.
    variables: dict[str, str]
    panels: tuple[Panel, ...]


def rendered(dashboard: Dashboard) -> str:
    """A dashboard as Grafana reads it."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels, x, y, height = [], 0, 0, 0
    for place, panel in enumerate(dashboard.panels, 1):
        width, tall = (6, 4) if panel.kind == "stat" else (12, 8)
        if x + width > 24:
            x, y = 0, y + height
        panels.append(
            {
                "id": place,
                "type": panel.kind,
                "title": panel.title,
                "description": panel.help,
                "datasource": source,
                "gridPos": {"x": x, "y": y, "w": width, "h": tall},
                "fieldConfig": {"defaults": {"unit": UNITS[panel.unit]}, "overrides": []},
                "targets": [
                    {
                        "refId": chr(ord("A") + number),
                        "datasource": source,
                        "expr": target.expression,
                        "legendFormat": target.legend or "__auto",
                    }
                    for number, target in enumerate(panel.targets)
                ],
            }
        )
        x, height = x + width, tall
    made: dict[str, Any] = {
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
    return json.dumps(made, indent=1) + "\n"


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
