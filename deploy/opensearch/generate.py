"""Generates the saved objects of OpenSearch Dashboards in this directory.

    python -m deploy.opensearch.generate

Index patterns, visualizations and dashboards over the indices of the OpenSearch sink, as NDJSON
that `Saved objects > Import` accepts. A test runs the query of every visualization against a server
that has OpenSearch's API, and fails if a field does not exist or the file is out of date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

HERE = Path(__file__).parent
FILE = HERE / "jobsight.ndjson"


class Metric(NamedTuple):
    """A number of each bucket."""

    kind: Literal["count", "sum", "avg", "max"]
    field: str = ""
    label: str = ""


class Visualization(NamedTuple):
    """One panel: a metric by the terms of fields, or over time."""

    name: str
    title: str
    index: Literal["jobs", "waiting", "nodes"]
    kind: Literal["metric", "horizontal_bar", "histogram", "pie", "table"]
    metrics: tuple[Metric, ...]
    #: Fields whose terms are the buckets, the outer first; "time" is a date histogram.
    by: tuple[str, ...] = ()
    size: int = 20


class Board(NamedTuple):
    """A dashboard: its visualizations, two in a row; numbers four in a row."""

    name: str
    title: str
    visualizations: tuple[Visualization, ...]


RUNS = Metric("count", label="Runs")
CORE_SECONDS = Metric("sum", "core_seconds", "Core seconds allocated")
CPU_SECONDS = Metric("sum", "cpu_seconds", "CPU seconds used")
SHARE = Metric("avg", "cpu_share", "Share of the core time used")

BOARDS = (
    Board(
        "usage",
        "jobsight: usage",
        (
            Visualization("runs", "Runs", "jobs", "metric", (RUNS,)),
            Visualization("core-seconds", "Core seconds", "jobs", "metric", (CORE_SECONDS,)),
            Visualization("cpu-seconds", "CPU seconds", "jobs", "metric", (CPU_SECONDS,)),
            Visualization(
                "gpu-seconds",
                "GPU seconds",
                "jobs",
                "metric",
                (Metric("sum", "gpu_held_seconds", "GPU seconds held"),),
            ),
            Visualization(
                "core-seconds-by-partition",
                "Core seconds over time by partition",
                "jobs",
                "histogram",
                (CORE_SECONDS,),
                ("time", "partition"),
            ),
            Visualization(
                "states", "Runs over time by state", "jobs", "histogram", (RUNS,), ("time", "state")
            ),
            Visualization(
                "users",
                "Core seconds by user",
                "jobs",
                "horizontal_bar",
                (CORE_SECONDS, CPU_SECONDS),
                ("user",),
            ),
            Visualization(
                "accounts", "Core seconds by account", "jobs", "pie", (CORE_SECONDS,), ("account",)
            ),
        ),
    ),
    Board(
        "efficiency",
        "jobsight: use of what was requested",
        (
            Visualization(
                "share-by-account",
                "Share of the core time used, by account",
                "jobs",
                "horizontal_bar",
                (SHARE,),
                ("account",),
            ),
            Visualization(
                "share-by-partition",
                "Share of the core time used, over time by partition",
                "jobs",
                "histogram",
                (SHARE,),
                ("time", "partition"),
            ),
            Visualization(
                "findings", "Runs by finding", "jobs", "horizontal_bar", (RUNS,), ("findings.kind",)
            ),
            Visualization(
                "findings-by-user",
                "Findings by user",
                "jobs",
                "table",
                (RUNS, CORE_SECONDS),
                ("user", "findings.kind"),
            ),
            Visualization(
                "gpus",
                "GPU seconds held and used, by account",
                "jobs",
                "horizontal_bar",
                (
                    Metric("sum", "gpu_held_seconds", "held"),
                    Metric("sum", "gpu_measured_seconds", "held, with a known use"),
                    Metric("sum", "gpu_used_seconds", "used"),
                ),
                ("account",),
            ),
            Visualization(
                "memory",
                "Largest memory by user",
                "jobs",
                "horizontal_bar",
                (
                    Metric("max", "memory_bytes", "requested"),
                    Metric("max", "memory_used_peak_bytes", "used"),
                ),
                ("user",),
            ),
        ),
    ),
    Board(
        "queue",
        "jobsight: nodes and queue",
        (
            Visualization(
                "pending", "Pending jobs", "waiting", "metric", (Metric("count", label="Jobs"),)
            ),
            Visualization(
                "node-count", "Nodes", "nodes", "metric", (Metric("count", label="Nodes"),)
            ),
            Visualization("cpus", "CPUs", "nodes", "metric", (Metric("sum", "cpus", "CPUs"),)),
            Visualization(
                "cpus-allocated",
                "Allocated CPUs",
                "nodes",
                "metric",
                (Metric("sum", "cpus_allocated", "Allocated CPUs"),),
            ),
            Visualization(
                "reasons",
                "Pending jobs by partition and reason",
                "waiting",
                "table",
                (Metric("count", label="Jobs"),),
                ("partition", "reason"),
            ),
            Visualization(
                "waiting-time",
                "Waiting time by partition",
                "jobs",
                "horizontal_bar",
                (
                    Metric("avg", "pending_seconds", "mean, seconds"),
                    Metric("max", "pending_seconds", "largest, seconds"),
                ),
                ("partition",),
            ),
            Visualization(
                "node-states", "Nodes by state", "nodes", "pie", (Metric("count"),), ("state",)
            ),
            Visualization(
                "node-reasons",
                "Nodes with a reason",
                "nodes",
                "table",
                (Metric("count", label="Nodes"),),
                ("reason", "name"),
            ),
        ),
    ),
)

#: Index pattern and its field of time; nodes and pending jobs are those of now.
_PATTERNS: dict[str, tuple[str, str | None]] = {
    "jobs": ("jobsight-jobs-*", "start"),
    "waiting": ("jobsight-waiting", None),
    "nodes": ("jobsight-nodes", None),
}
_INDEX = "kibanaSavedObjectMeta.searchSourceJSON.index"


def saved_objects() -> list[dict[str, Any]]:
    """The objects in the order in which they refer to each other."""
    found: list[dict[str, Any]] = []
    for name, (title, time) in _PATTERNS.items():
        attributes = {"title": title} | ({"timeFieldName": time} if time else {})
        found.append(_object("index-pattern", f"jobsight-{name}", attributes, []))
    for board in BOARDS:
        found += [_visualization(each) for each in board.visualizations]
        found.append(_dashboard(board))
    return found


def aggregations(visualization: Visualization) -> list[dict[str, Any]]:
    """The metrics and buckets as a visualization stores them."""
    found: list[dict[str, Any]] = []
    for number, metric in enumerate(visualization.metrics, 1):
        parameters = {"field": metric.field} if metric.field else {}
        if metric.label:
            parameters["customLabel"] = metric.label
        found.append(
            {
                "id": str(number),
                "enabled": True,
                "type": metric.kind,
                "schema": "metric",
                "params": parameters,
            }
        )
    for number, field in enumerate(visualization.by, len(found) + 1):
        first = number == len(visualization.metrics) + 1
        found.append(
            {
                "id": str(number),
                "enabled": True,
                "type": "date_histogram" if field == "time" else "terms",
                "schema": _schema(visualization, first=first),
                "params": _bucket(visualization, field),
            }
        )
    return found


def _schema(visualization: Visualization, *, first: bool) -> str:
    if visualization.kind == "table":
        return "bucket"
    return "segment" if first else "group"


def _bucket(visualization: Visualization, field: str) -> dict[str, Any]:
    if field == "time":
        return {
            "field": _PATTERNS[visualization.index][1],
            "interval": "auto",
            "min_doc_count": 1,
            "extended_bounds": {},
        }
    return {
        "field": field,
        "size": visualization.size,
        "order": "desc",
        "orderBy": "1",
        "otherBucket": visualization.kind != "table",
        "otherBucketLabel": "others",
        "missingBucket": False,
    }


def _visualization(each: Visualization) -> dict[str, Any]:
    state = {
        "title": each.title,
        "type": each.kind,
        "params": {"type": each.kind, "addTooltip": True, "addLegend": each.kind != "metric"},
        "aggs": aggregations(each),
    }
    attributes = {
        "title": each.title,
        "description": "",
        "version": 1,
        "visState": json.dumps(state),
        "uiStateJSON": "{}",
        "kibanaSavedObjectMeta": _search(index=True),
    }
    pattern = {"name": _INDEX, "type": "index-pattern", "id": f"jobsight-{each.index}"}
    return _object("visualization", f"jobsight-{each.name}", attributes, [pattern])


def _dashboard(board: Board) -> dict[str, Any]:
    panels, references = [], []
    x = y = height = 0
    for number, each in enumerate(board.visualizations):
        width, tall = (12, 8) if each.kind == "metric" else (24, 16)
        if x + width > 48 or (height and tall != height):
            x, y = 0, y + height
        panels.append(
            {
                "panelIndex": str(number),
                "gridData": {"x": x, "y": y, "w": width, "h": tall, "i": str(number)},
                "embeddableConfig": {},
                "panelRefName": f"panel_{number}",
                "version": "2.0.0",
            }
        )
        references.append(
            {"name": f"panel_{number}", "type": "visualization", "id": f"jobsight-{each.name}"}
        )
        x, height = x + width, tall
    attributes = {
        "title": board.title,
        "description": "",
        "version": 1,
        "panelsJSON": json.dumps(panels),
        "optionsJSON": json.dumps({"useMargins": True, "hidePanelTitles": False}),
        "timeRestore": True,
        "timeFrom": "now-30d",
        "timeTo": "now",
        "kibanaSavedObjectMeta": _search(index=False),
    }
    return _object("dashboard", f"jobsight-{board.name}", attributes, references)


def _search(*, index: bool) -> dict[str, str]:
    source: dict[str, Any] = {"query": {"query": "", "language": "kuery"}, "filter": []}
    if index:
        source["indexRefName"] = _INDEX
    return {"searchSourceJSON": json.dumps(source)}


def _object(
    kind: str, identifier: str, attributes: dict[str, Any], references: list[dict[str, str]]
) -> dict[str, Any]:
    return {"id": identifier, "type": kind, "attributes": attributes, "references": references}


def render() -> str:
    return "".join(json.dumps(each, sort_keys=True) + "\n" for each in saved_objects())


def main() -> None:
    text = render()
    if not FILE.exists() or FILE.read_text() != text:
        FILE.write_text(text)
        print(f"{FILE.name}: updated")


if __name__ == "__main__":
    main()
