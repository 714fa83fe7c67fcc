"""API routes for monitoring: health, the server's /metrics, and service discovery of agents."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query
from sqlalchemy import select
from starlette.responses import Response

from jobsight.model import SECOND
from jobsight.scheduler.cluster_metrics import ClusterMetrics, count_health, exposition
from jobsight.scheduler.sinks.feeder import read_reasons
from jobsight.scheduler.state import ScrapeState, attempted_clusters, read_state
from jobsight.server.api.jobs import Text, check_parameters, json_reply, replies
from jobsight.store.schema.tables import agents
from jobsight.store.snapshot import read_snapshot, snapshot_clusters
from jobsight.store.store import Store
from jobsight.util.outer import Time
from jobsight.util.workers import worker_reasons

_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class ClusterHealth(msgspec.Struct):
    """The state of the scraping of one cluster."""

    cluster: str
    healthy: bool
    #: Why the last scrape failed; the stored data is unchanged.
    reason: str
    #: The source in use, and why it was chosen.
    source: str
    attempted: Time | None
    succeeded: Time | None


class SinkHealth(msgspec.Struct):
    """The state of one sink."""

    sink: str
    healthy: bool
    reason: str


class WorkerHealth(msgspec.Struct):
    """The state of one background worker of the server: retention, software, archive ..."""

    worker: str
    healthy: bool
    reason: str


class Health(msgspec.Struct):
    """The state of the server; healthy if every part is."""

    healthy: bool
    store: str
    clusters: list[ClusterHealth]
    sinks: list[SinkHealth]
    workers: list[WorkerHealth] = []


def create_health_router(
    store: Store,
    clock: Callable[[], int] = time.time_ns,
    more: Callable[[], str] | None = None,
) -> APIRouter:
    """Health and /metrics; ``more`` returns further text for /metrics."""
    router = APIRouter()

    @router.get("/api/v1/health", tags=["server"], responses=replies(Health, 503))
    def health() -> Response:
        """The state of the store, of the scraping of each cluster and of the sinks."""
        return json_reply(read_health(store))

    @router.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        """Cluster metrics for Prometheus, from the last scrape of Slurm."""
        parts: list[ClusterMetrics] = []
        for cluster in _clusters(store):
            parts += read_snapshot(store.database, cluster, "cluster_metrics", ClusterMetrics)
            parts.append(count_health(_state(store, cluster), clock()))
        text = exposition(parts) + (more() if more is not None else "")
        return Response(text, media_type=_METRICS)

    return router


def read_health(store: Store) -> Health:
    """Read the state from the store, which also checks that the store is available."""
    clusters = [_cluster(_state(store, name)) for name in _clusters(store)]
    sinks = [SinkHealth(name, not reason, reason) for name, reason in read_reasons(store).items()]
    workers = [WorkerHealth(name, not why, why) for name, why in worker_reasons().items()]
    parts: list[ClusterHealth | SinkHealth | WorkerHealth] = [*clusters, *sinks, *workers]
    healthy = all(part.healthy for part in parts)
    return Health(healthy, store.database.where, clusters, sinks, workers)


def _clusters(store: Store) -> list[str]:
    """All clusters with a snapshot, and those whose scrape has never succeeded."""
    return sorted({*snapshot_clusters(store.database), *attempted_clusters(store.database)})


def _state(store: Store, cluster: str) -> ScrapeState:
    return read_state(store.database, cluster)


def _cluster(state: ScrapeState) -> ClusterHealth:
    return ClusterHealth(
        cluster=state.cluster,
        healthy=state.healthy,
        reason=state.reason,
        source=state.source,
        attempted=state.attempted,
        succeeded=state.succeeded,
    )


#: An agent without jobs sends nothing, so it is listed for some days after its last batch.
_MAX_SILENT_DAYS = 7.0


class TargetGroup(msgspec.Struct):
    """One agent: the address of its exporter, and labels for relabelling."""

    targets: list[str]
    labels: dict[str, str]


def create_discovery_router(store: Store, clock: Callable[[], int] = time.time_ns) -> APIRouter:
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(check_parameters)])

    @router.get("/discovery", tags=["agents"], responses=_replies())
    def discovery(
        cluster: Text = None,
        port: Annotated[int, Query(ge=1, le=65535, description="Port of the exporters")] = 9306,
        days: Annotated[
            float,
            Query(ge=0.001, le=3660, description="Omit agents that sent nothing for this long"),
        ] = _MAX_SILENT_DAYS,
    ) -> Response:
        """List the agents for Prometheus's `http_sd_configs`."""
        since = clock() - round(days * 86400) * SECOND
        groups = target_groups(store, cluster=cluster, port=port, since=since)
        return Response(msgspec.json.encode(groups), media_type="application/json")

    return router


def target_groups(store: Store, *, cluster: str | None, port: int, since: int) -> list[TargetGroup]:
    """The agents that have sent a batch since then, by cluster and node."""
    query = select(agents.c.cluster, agents.c.node, agents.c.version).where(
        agents.c.received >= since
    )
    if cluster is not None:
        query = query.where(agents.c.cluster == cluster)
    with store.database.read() as connection:
        rows = list(connection.execute(query.order_by(agents.c.cluster, agents.c.node)))
    return [
        TargetGroup(
            [f"[{node}]:{port}" if ":" in node else f"{node}:{port}"],
            {
                "__meta_jobsight_cluster": of,
                "__meta_jobsight_node": node,
                "__meta_jobsight_version": version,
            },
        )
        for of, node, version in rows
    ]


def _replies() -> dict[int | str, dict[str, Any]]:
    described = replies(TargetGroup, 422, 503)
    # Prometheus requires a list, not an object.
    content = described[200]["content"]["application/json"]
    content["schema"] = {"type": "array", "items": content["schema"]}
    return described
