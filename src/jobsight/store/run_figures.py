"""The figures of runs worked out from their nodes, to be compared with those that are stored."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from jobsight.model import Run
from jobsight.store.bookings import of_node, total
from jobsight.store.tables import run_nodes, runs


def name_of_node(connection: Connection, id: int) -> str:
    """A row of ``run_nodes`` as a person would call it."""
    query = (
        select(runs.c.cluster, runs.c.job_id, runs.c.start, run_nodes.c.node)
        .join(runs, runs.c.id == run_nodes.c.run_id)
        .where(run_nodes.c.id == id)
    )
    found = connection.execute(query).one_or_none()
    return f"run {Run(*found[:3])} on {found[3]}" if found else f"node {id} of no run"


def figures(connection: Connection, first: int, last: int) -> dict[int, list[Any]]:
    """Of each run: whose its nodes are, and their figures."""
    names = ("run_id", "cluster", "job_id", "node", "cpu_time", "memory_used_peak", "memory_peak")
    columns = [run_nodes.c[name] for name in (*names, "first_sample", "last_sample")]
    found: dict[int, list[Any]] = {}
    query = select(*columns).where(run_nodes.c.run_id.between(first, last))
    for run_id, *values in connection.execute(query):
        found.setdefault(run_id, []).append(values)
    return found


def sums(nodes: list[Any], cluster: str, job_id: int) -> tuple[list[int | None], list[str]]:
    """The figures of a run from those of its nodes, and the nodes that are not its own."""
    by_node: dict[str, list[Any]] = {}
    samples: list[tuple[int, int]] = []
    others = []
    for its_cluster, its_job, node, *figures, first, last in nodes:
        by_node.setdefault(node, []).append(figures)
        if first is not None:
            samples.append((first, last))
        if (its_cluster, its_job) != (cluster, job_id):
            others.append(node)
    figures = [of_node(rows) for rows in by_node.values()]
    sums = [total([one[place] for one in figures]) for place in range(3)]
    first = min((first for first, _ in samples), default=None)
    return [*sums, first, max((last for _, last in samples), default=None)], others
