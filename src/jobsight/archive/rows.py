"""Runs of the store as rows of the archive's tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, func, select

from jobsight.archive.wide import Stretch, metrics_of
from jobsight.model import JobTotals
from jobsight.store.schema.statements import INFO_NAMES
from jobsight.store.schema.tables import (
    SUMMED_FIGURES,
    chunks,
    executables,
    paths,
    run_details,
    run_nodes,
    runs,
    steps,
)
from jobsight.store.series import codec
from jobsight.store.series.curves import MAX_VALUES, SeriesBlock, join
from jobsight.store.write.runs import info_from_columns
from jobsight.text import readable_path

#: Nodes of runs whose rows are held at once.
_NODES_AT_ONCE = 1000

_decode_totals = msgspec.msgpack.Decoder(JobTotals).decode
_TOTALS = tuple(name for name in JobTotals.__struct_fields__ if name != "time")
_RUN = ("job_id", "start", "updated", "provisional", "cpu_time", "memory_used_peak", "memory_peak")
_NODE = ("node", "boot_id", "birth", "sluid", "restart_count", "epoch", "written", "final")
_EXECUTABLE = ("path", "path_known", "epoch", "sequence", *SUMMED_FIGURES, "peak_memory")
_STEP = ("step", "tasks", "cpu_time", "cpu_overhead", "memory_peak", "oom_kills", "ended")


class RunToArchive(NamedTuple):
    """A run and all that belongs to it but its curves."""

    id: int
    updated: int
    start: int
    #: The start under which the archive holds an older version.
    archived_start: int | None
    row: dict[str, Any]
    nodes: dict[int, dict[str, Any]]
    executables: list[dict[str, Any]]
    steps: list[dict[str, Any]]


def portions(connection: Connection, ids: Sequence[int]) -> Iterator[list[int]]:
    """The ids in pieces whose runs have not too many nodes to be held at once."""
    query = (
        select(run_nodes.c.run_id, func.count().label("nodes"))
        .where(run_nodes.c.run_id.in_(ids))
        .group_by(run_nodes.c.run_id)
    )
    nodes = {row.run_id: row.nodes for row in connection.execute(query)}
    some: list[int] = []
    held = 0
    for run_id in ids:
        held += nodes.get(run_id, 0)
        if some and held > _NODES_AT_ONCE:
            yield some
            some, held = [], nodes.get(run_id, 0)
        some.append(run_id)
    yield some


def gather(connection: Connection, ids: Sequence[int]) -> list[RunToArchive]:
    """The runs with these ids, in the order of their job ids."""
    query = (
        select(runs, run_details.c.data.label("details"))
        .join(run_details, run_details.c.run_id == runs.c.id, isouter=True)
        .where(runs.c.id.in_(ids))
        .order_by(runs.c.job_id, runs.c.start)
    )
    found = {}
    for row in connection.execute(query).mappings():
        found[row["id"]] = RunToArchive(
            id=row["id"],
            updated=row["updated"],
            start=row["start"],
            archived_start=row["archived_start"],
            row=_run(row),
            nodes={},
            executables=[],
            steps=[],
        )
    owner: dict[int, RunToArchive] = {}
    of_runs = select(run_nodes).where(run_nodes.c.run_id.in_(ids)).order_by(run_nodes.c.id)
    for row in connection.execute(of_runs).mappings():
        run = owner[row["id"]] = found[row["run_id"]]
        run.nodes[row["id"]] = _node(run, row)
    _add_executables(connection, ids, owner)
    _add_steps(connection, ids, owner)
    for run in found.values():
        run.row["node_count"] = len(run.nodes)
        run.row["executable_count"] = len(run.executables)
        run.row["step_count"] = len(run.steps)
    return list(found.values())


def _run(row: Any) -> dict[str, Any]:
    columns = {name: row[name] for name in INFO_NAMES}
    info = info_from_columns(row["cluster"], row["job_id"], None, columns)
    made = {name: getattr(info, name) for name in INFO_NAMES}
    made["nodes"] = None if info.nodes is None else list(info.nodes)
    made["tres"] = None if info.tres is None else list(info.tres.items())
    made |= {name: row[name] for name in _RUN}
    made |= {"first_seen": row["first_seen"], "last_seen": row["last_seen"]}
    return made | {"withdrawn": False, "sample_count": 0, "details": row["details"]}


def _node(run: RunToArchive, row: Any) -> dict[str, Any]:
    totals = None if row["totals"] is None else _decode_totals(row["totals"])
    coverage = row["coverage"]
    if coverage is not None:
        coverage = msgspec.json.encode(msgspec.msgpack.decode(coverage)).decode()
    made = {"job_id": row["job_id"], "start": run.start, "sighting": len(run.nodes)}
    made |= {name: row[name] for name in (*_NODE, "first_sample", "last_sample")}
    made |= {name: getattr(totals, name, None) for name in _TOTALS}
    made["counted"] = None if totals is None else totals.time
    return made | {"coverage": coverage, "metrics": [], "sample_count": 0}


def _sighting(run: RunToArchive, run_node_id: int) -> dict[str, Any]:
    node = run.nodes[run_node_id]
    return {name: node[name] for name in ("job_id", "start", "sighting", "node")}


def _seen(row: Any) -> dict[str, Any]:
    # Zero stands for a time that the agent did not know.
    return {name: row[name] or None for name in ("first_seen", "last_seen")}


def _add_executables(
    connection: Connection, ids: Sequence[int], owner: dict[int, RunToArchive]
) -> None:
    query = (
        select(executables, paths.c.path)
        .join(run_nodes, run_nodes.c.id == executables.c.run_node_id)
        .join(paths, paths.c.id == executables.c.path_id)
        .where(run_nodes.c.run_id.in_(ids))
        .order_by(executables.c.run_node_id, paths.c.path, executables.c.epoch)
    )
    for row in connection.execute(query).mappings():
        run = owner[row["run_node_id"]]
        made = _sighting(run, row["run_node_id"]) | {name: row[name] for name in _EXECUTABLE}
        run.executables.append(made | _seen(row) | {"path_text": readable_path(bytes(row["path"]))})


def _add_steps(connection: Connection, ids: Sequence[int], owner: dict[int, RunToArchive]) -> None:
    query = (
        select(steps)
        .join(run_nodes, run_nodes.c.id == steps.c.run_node_id)
        .where(run_nodes.c.run_id.in_(ids))
        .order_by(steps.c.run_node_id, steps.c.first_seen, steps.c.step)
    )
    for row in connection.execute(query).mappings():
        run = owner[row["run_node_id"]]
        made = _sighting(run, row["run_node_id"]) | {name: row[name] for name in _STEP}
        run.steps.append(made | _seen(row))


def stretches(connection: Connection, found: Sequence[RunToArchive]) -> Iterator[Stretch]:
    """The curves of some runs, sighting by sighting; the rows learn what there is."""
    query = (
        select(chunks.c.run_node_id, chunks.c.data)
        .join(run_nodes, run_nodes.c.id == chunks.c.run_node_id)
        .where(run_nodes.c.run_id.in_([run.id for run in found]))
        .order_by(chunks.c.run_node_id, chunks.c.id)
        .execution_options(stream_results=True, max_row_buffer=16)
    )
    owner = {run_node_id: run for run in found for run_node_id in run.nodes}
    for run_node_id, curves in _joined(connection.execute(query)):
        run = owner[run_node_id]
        node = run.nodes[run_node_id]
        known = dict(node["metrics"])
        node["metrics"] = list((known | metrics_of(curves)).items())
        node["sample_count"] += len(curves.times)
        run.row["sample_count"] += len(curves.times)
        yield Stretch(**_sighting(run, run_node_id), part="", curves=curves)


def _joined(found: Any) -> Iterator[tuple[int, SeriesBlock]]:
    """Chunks put together, as far as one reader's memory allows."""
    waiting: list[SeriesBlock] = []
    owner, values = 0, 0
    for run_node_id, data in found:
        part = SeriesBlock(*codec.decode(data))
        size = len(part.times) * len(part.columns)
        if waiting and (run_node_id != owner or values + size > MAX_VALUES):
            yield owner, join(waiting)
            waiting, values = [], 0
        waiting.append(part)
        owner, values = run_node_id, values + size
    if waiting:
        yield owner, join(waiting)
