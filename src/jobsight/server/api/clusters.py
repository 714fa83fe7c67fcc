"""API routes of clusters as the scheduler reports them: nodes, partitions, reservations, QOS.

They show the snapshot of the last scrape. Every viewer may see them, as with `sinfo`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Final, TypeVar

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Query
from msgspec import field
from starlette.requests import Request
from starlette.responses import Response

from jobsight.metrics import NODE_METRICS
from jobsight.model import SECOND
from jobsight.reports import series as time_series
from jobsight.reports.cluster import ClusterView, PartitionRow, shown_state, view_cluster
from jobsight.reports.gpu_models import find_model
from jobsight.scheduler.adapters.policy import QosInfo, ReservationInfo
from jobsight.scheduler.cluster_metrics import is_usable
from jobsight.scheduler.records import NodeInfo
from jobsight.server.api.common import (
    MetricNames,
    NameCursor,
    PageLimit,
    PointCount,
    Selection,
    Text,
    TimeParameter,
    check_parameters,
    json_reply,
    page_of_names,
    page_reply,
    replies,
)
from jobsight.store.read import node_days
from jobsight.store.read import nodes as nodes_read
from jobsight.store.read.clusters import known_clusters
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store
from jobsight.util.outer import Duration, Size, Time


class ClusterList(msgspec.Struct):
    """The clusters that have agents or were scraped."""

    clusters: list[ClusterView]


class NodeGpus(msgspec.Struct):
    """The GPUs of one type on a node."""

    #: As the site names it in Slurm; empty without a type.
    type: str
    #: The name of the model in /api/v1/gpus; null if it is not known.
    model: str | None
    count: int
    allocated: int


class Node(msgspec.Struct, kw_only=True):
    """A node at the time of the last scrape."""

    cluster: str
    name: str
    #: With its flags: idle+drain.
    state: str
    #: Whether it accepts jobs.
    usable: bool
    reason: str | None
    reason_user: str | None
    reason_time: Time | None
    partitions: tuple[str, ...]
    features: tuple[str, ...]
    cpus: int | None
    cpus_allocated: int | None
    sockets: int | None
    cores_per_socket: int | None
    threads_per_core: int | None
    #: The load average over one minute.
    load: float | None
    memory: Size | None = field(name="memory_bytes")
    memory_allocated: Size | None = field(name="memory_allocated_bytes")
    memory_free: Size | None = field(name="memory_free_bytes")
    gpus: list[NodeGpus]
    reservation: str | None
    architecture: str | None
    system: str | None
    slurm_version: str | None
    booted: Time | None
    last_busy: Time | None


class NodeList(msgspec.Struct):
    total: int
    limit: int
    #: The cursor of the next page; null on the last one.
    next: str | None
    nodes: list[Node]


class Partition(PartitionRow, kw_only=True):
    cluster: str


class PartitionList(msgspec.Struct):
    partitions: list[Partition]


class Reservation(msgspec.Struct, kw_only=True):
    cluster: str
    name: str
    start: Time | None
    end: Time | None
    nodes: tuple[str, ...]
    partition: str | None
    users: tuple[str, ...]
    accounts: tuple[str, ...]
    flags: tuple[str, ...]


class ReservationList(msgspec.Struct):
    reservations: list[Reservation]


class Qos(msgspec.Struct, kw_only=True):
    """A quality of service."""

    cluster: str
    name: str
    priority: int | None
    usage_factor: float | None
    flags: tuple[str, ...]
    time_limit: Duration | None = field(name="time_limit_seconds")
    tres_per_user: dict[str, int]


class QosList(msgspec.Struct):
    qos: list[Qos]


class NodeSeries(msgspec.Struct):
    """The time series of a node as a whole, whatever ran on it."""

    cluster: str
    node: str
    #: Requested metrics that the node has not sent in the interval.
    absent: list[str]
    #: Seconds since 1970.
    times_seconds: list[float]
    metrics: dict[str, time_series.MetricSeries]


NODE_FIELDS = Selection(Node, "cluster", "name")
REPLIES = (
    *(ClusterList, ClusterView, NodeList, Node, PartitionList, ReservationList, QosList),
    NodeSeries,
)
_DAY: Final = 86400 * SECOND
#: Days of the longest interval of time series of a node.
MAX_DAYS: Final = 400

ClusterPath = Annotated[str, Path(max_length=200, description="The name of the cluster")]
NodePath = Annotated[str, Path(max_length=200, description="The name of the node")]
_Record = TypeVar("_Record", bound=msgspec.Struct)


def create_router(store: Store, *, clock: Callable[[], int] = time.time_ns) -> APIRouter:
    """The routes under /api/v1."""
    router = APIRouter(
        prefix="/api/v1", dependencies=[Depends(check_parameters)], tags=["clusters"]
    )

    def chosen(cluster: str | None) -> list[str]:
        return known_clusters(store.database) if cluster is None else [cluster]

    def records(cluster: str | None, kind: str, form: type[_Record]) -> Iterator[_Record]:
        for name in chosen(cluster):
            yield from read_snapshot(store.database, name, kind, form)

    @router.get("/clusters", responses=replies(ClusterList, 422, 503))
    def clusters() -> Response:
        """List the clusters with their allocated and idle resources and their queue."""
        return json_reply(ClusterList([view_cluster(store, name) for name in chosen(None)]))

    @router.get("/clusters/{cluster}", responses=replies(ClusterView, 404, 422, 503))
    def cluster_(cluster: ClusterPath) -> Response:
        """One cluster, with its partitions and the nodes that are not available."""
        if cluster not in known_clusters(store.database):
            raise HTTPException(404, f"there is no cluster {cluster[:100]!r}")
        return json_reply(view_cluster(store, cluster))

    @router.get("/nodes", responses=replies(NodeList, 422, 503))
    def nodes(  # noqa: PLR0913 -- FastAPI: one for each parameter of the query
        request: Request,
        cluster: Text = None,
        partition: Text = None,
        state: Annotated[
            str | None,
            Query(max_length=100, description="The state or one of its flags, as `idle`, `drain`"),
        ] = None,
        feature: Text = None,
        gpu: Annotated[
            str | None, Query(max_length=100, description="The type of its GPUs, or `any`")
        ] = None,
        limit: PageLimit = 100,
        cursor: NameCursor = None,
        fields: Annotated[str | None, NODE_FIELDS.query] = None,
    ) -> Response:
        """List the nodes by cluster and name."""
        wanted = _node_filter(partition, state, feature, gpu)
        found = [node for node in records(cluster, "node", NodeInfo) if wanted(node)]
        page, following = page_of_names(
            found, lambda node: (node.cluster, node.name), limit, cursor
        )
        reply = NodeList(len(found), limit, following, [node_reply(node) for node in page])
        return page_reply(request, reply, "nodes", NODE_FIELDS.parse(fields))

    @router.get("/clusters/{cluster}/nodes/{node}", responses=replies(Node, 404, 422, 503))
    def node(cluster: ClusterPath, node: NodePath) -> Response:
        """One node."""
        for record in records(cluster, "node", NodeInfo):
            if record.name == node:
                return json_reply(node_reply(record))
        raise HTTPException(404, f"there is no node {node[:100]!r} in cluster {cluster[:100]!r}")

    @router.get("/nodes/{cluster}/{node}/series", responses=replies(NodeSeries, 404, 413, 422, 503))
    def series_of_node(
        cluster: ClusterPath,
        node: NodePath,
        metrics: MetricNames = None,
        points: PointCount = 600,
        since: TimeParameter = None,
        until: TimeParameter = None,
    ) -> Response:
        """The time series of a node as a whole, downsampled; counters as rates.

        For staff and auditors: on a node with one job they show what that job did. Without an
        interval they are those of the last day.
        """
        end = clock() if until is None else until
        begin = max(end - _DAY, 0) if since is None else since
        return json_reply(_node_series(store, (cluster, node), metrics, points, (begin, end)))

    @router.get("/partitions", responses=replies(PartitionList, 422, 503))
    def partitions(cluster: Text = None) -> Response:
        """List the partitions with their resources, their running and their waiting jobs."""
        rows = [
            Partition(cluster=name, **msgspec.structs.asdict(row))
            for name in chosen(cluster)
            for row in view_cluster(store, name).partitions
        ]
        return json_reply(PartitionList(rows))

    @router.get("/reservations", responses=replies(ReservationList, 422, 503))
    def reservations(cluster: Text = None) -> Response:
        """List the reservations."""
        names = Reservation.__struct_fields__
        rows = [
            Reservation(**{name: getattr(record, name) for name in names})
            for record in records(cluster, "reservation", ReservationInfo)
        ]
        return json_reply(ReservationList(rows))

    @router.get("/qos", responses=replies(QosList, 422, 503))
    def qos(cluster: Text = None) -> Response:
        """List the qualities of service."""
        names = Qos.__struct_fields__
        rows = [
            Qos(**{name: getattr(record, name) for name in names})
            for record in records(cluster, "qos", QosInfo)
        ]
        return json_reply(QosList(rows))

    return router


def _node_series(
    store: Store,
    place: tuple[str, str],
    metrics: str | None,
    points: int,
    interval: tuple[int, int],
) -> NodeSeries:
    begin, end = interval
    if not 0 <= end - begin <= MAX_DAYS * _DAY:
        raise HTTPException(422, f"until must be 0 to {MAX_DAYS} days after since")
    names = [name.strip() for name in (metrics or "").split(",") if name.strip()]
    series = node_days.series_of_node(
        store.database, *place, names or tuple(NODE_METRICS), begin, end
    )
    if series is not None:
        reply = time_series.reply("", [series], names, points)
        (own,) = reply.nodes
        return NodeSeries(*place, reply.absent, own.times_seconds, own.metrics)
    if nodes_read.agent_of_node(store.database, *place) is None:
        cluster, node = place
        raise HTTPException(404, f"cluster {cluster[:100]!r} has no agent on a node {node[:100]!r}")
    return NodeSeries(*place, names, [], {})


def _node_filter(
    partition: str | None, state: str | None, feature: str | None, gpu: str | None
) -> Callable[[NodeInfo], bool]:
    def is_wanted(node: NodeInfo) -> bool:
        return (
            (partition is None or partition in node.partitions)
            and (state is None or state.lower() in shown_state(node).split("+"))
            and (feature is None or feature in node.features)
            and (gpu is None or any(gpu in ("any", each.type) for each in gpus_of(node)))
        )

    return is_wanted


def gpus_of(node: NodeInfo) -> list[NodeGpus]:
    """The GPUs of a node by type."""
    rows = []
    for name, count in node.gres.items():
        kind, _, type_name = name.partition(":")
        if kind == "gpu":
            model = find_model(type_name)
            allocated = node.gres_used.get(name, 0)
            rows.append(NodeGpus(type_name, model.name if model else None, count, allocated))
    return rows


def node_reply(node: NodeInfo) -> Node:
    """A node as the API shows it."""
    same = (
        *("cluster", "name", "reason", "reason_user", "reason_time", "partitions", "features"),
        *("cpus", "cpus_allocated", "sockets", "load", "memory", "memory_allocated"),
        *("memory_free", "reservation", "architecture", "system", "booted", "last_busy"),
    )
    return Node(
        **{name: getattr(node, name) for name in same},
        state=shown_state(node),
        usable=is_usable(node),
        cores_per_socket=node.cores,
        threads_per_core=node.threads,
        gpus=gpus_of(node),
        slurm_version=node.version,
    )
