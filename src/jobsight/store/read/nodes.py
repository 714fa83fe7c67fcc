"""What a node ran and reported: its runs in an interval, its agent, and faults of its GPUs.

Runs are found by the sightings of agents. A run that no agent saw on the node is not listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from jobsight.model import SECOND, GpuFault
from jobsight.store.database import Database
from jobsight.store.read import queries
from jobsight.store.read.queries import StoredRun, StoredSeries
from jobsight.store.read.visibility import Visibility
from jobsight.store.sql.load import load_statements

_SQL: Final = load_statements("nodes")
#: A run that began longer before an interval is not found in it.
MAX_RUN_LENGTH: Final = 60 * 86400 * SECOND
#: The newest sightings of a node among which runs are found.
_MAX_SIGHTINGS: Final = 5000
#: GPUs of a node, and faults of them.
_MAX_GPUS: Final = 64
_MAX_FAULTS: Final = 50
_faults = msgspec.msgpack.Decoder(list[GpuFault]).decode


class NodeAgent(NamedTuple):
    """The agent of a node, by its last batch."""

    node: str
    version: str
    received: int
    #: How far its clock is ahead, in nanoseconds.
    clock_skew: int


class SendingAgent(NamedTuple):
    """An agent that has sent a batch."""

    cluster: str
    node: str
    version: str


class NodeGpu(NamedTuple):
    """A GPU that runs of the node have held."""

    key: str
    name: str
    uuid: str
    memory_total: int | None


class GpuFaults(NamedTuple):
    """The faults of one GPU during one run."""

    run_id: int
    key: str
    name: str
    last_seen: int
    faults: list[GpuFault]


def runs_on_node(
    database: Database,
    cluster: str,
    node: str,
    *,
    since: int,
    until: int,
    limit: int,
    visibility: Visibility,
    state: str | None = None,
) -> list[StoredRun]:
    """The runs that were on a node in an interval, the latest start first."""
    filter = queries.run_filter(visibility=visibility, state=state)
    conditions = ('coalesce("end", last_seen, start) >= :on_since', "start < :on_until")
    interval = {"on_since": since, "on_until": until}
    filter = filter._replace(
        conditions=(*filter.conditions, *conditions), parameters={**filter.parameters, **interval}
    )
    values = {
        "cluster": cluster,
        "node": node,
        "since": since - MAX_RUN_LENGTH,
        "until": until,
        "limit": _MAX_SIGHTINGS,
    }
    with database.query() as transaction:
        rows = transaction.execute(_SQL["runs_on_node"], values).fetchall()
        ids = [run_id for (run_id,) in rows]
        return queries.list_these_runs(transaction, filter, ids, limit, complete=True)


def series_of_runs(
    database: Database,
    run_ids: Sequence[int],
    node: str,
    metrics: Sequence[str],
    since: int,
    until: int,
) -> Iterator[StoredSeries]:
    """The time series of some runs on one node, one run after the other."""
    with database.query() as transaction:
        for run_id in run_ids:
            found = queries.series_on_node(transaction, run_id, node, metrics, since, until)
            if found is not None:
                yield found


def agent_of_node(database: Database, cluster: str, node: str) -> NodeAgent | None:
    """The agent of a node; None if it has never sent a batch."""
    with database.query() as transaction:
        key = {"cluster": cluster, "node": node}
        row = transaction.execute(_SQL["agent_of_node"], key).fetchone()
    return None if row is None else NodeAgent(node, *row)


def agents_of_cluster(database: Database, cluster: str) -> dict[str, NodeAgent]:
    """The agents of a cluster by node."""
    with database.query() as transaction:
        rows = transaction.execute(_SQL["agents_of_cluster"], {"cluster": cluster}).fetchall()
    return {row[0]: NodeAgent(*row) for row in rows}


def agents_since(database: Database, since: int, cluster: str | None = None) -> list[SendingAgent]:
    """The agents that have sent a batch since then, of one cluster or of all, in order."""
    values = {"since": since, "cluster": cluster}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["agents_since"], values).fetchall()
    return [SendingAgent(*row) for row in rows]


def gpus_of_node(database: Database, cluster: str, node: str, since: int) -> list[NodeGpu]:
    """The GPUs that runs of the node have held since then."""
    values = {"cluster": cluster, "node": node, "since": since, "limit": _MAX_GPUS}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["gpus_of_node"], values).fetchall()
    return [NodeGpu(*row) for row in rows]


def gpu_faults(database: Database, cluster: str, node: str, since: int) -> list[GpuFaults]:
    """Faults that GPUs of the node reported during runs since then, the newest first."""
    values = {"cluster": cluster, "node": node, "since": since, "limit": _MAX_FAULTS}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["gpu_faults"], values).fetchall()
    found = [
        GpuFaults(run_id, key, name, last_seen, _faults(bytes(data)))
        for run_id, key, name, last_seen, data in rows
    ]
    return [each for each in found if each.faults]
