"""How the server fares: the store, the scraping of each cluster, and the sinks."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from jobsight.scheduler.cluster_metrics import ClusterMetrics, count_health, exposition
from jobsight.scheduler.sinks.feeder import read_reasons
from jobsight.scheduler.snapshot import read_snapshot, snapshot_clusters
from jobsight.scheduler.state import ScrapeState, read_state
from jobsight.server.api import json_reply, replies
from jobsight.store.store import Store

_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class ClusterHealth(msgspec.Struct):
    """How the scraping of one cluster fares."""

    cluster: str
    healthy: bool
    #: Why the last attempt failed; what is stored stays as it was.
    reason: str
    #: Which source is asked, and why that one.
    source: str
    attempted: int | None
    succeeded: int | None


class SinkHealth(msgspec.Struct):
    """How one sink fares."""

    sink: str
    healthy: bool
    reason: str


class Health(msgspec.Struct):
    """All of it; healthy where every part is."""

    healthy: bool
    store: str
    clusters: list[ClusterHealth]
    sinks: list[SinkHealth]


def create_router(
    store: Store,
    clock: Callable[[], int] = time.time_ns,
    more: Callable[[], str] | None = None,
) -> APIRouter:
    """The routes that monitoring asks; ``more`` adds to the text of /metrics."""
    router = APIRouter()

    @router.get("/api/v1/health", tags=["server"], responses=replies(Health, 503))
    def health() -> Response:
        """Say how the store, the scraping of each cluster and the sinks fare."""
        return json_reply(read_health(store))

    @router.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        """Give the gauges of the clusters to Prometheus; Slurm is not asked for them."""
        parts: list[ClusterMetrics] = []
        for cluster in snapshot_clusters(store):
            parts += read_snapshot(store, cluster, "gauges", ClusterMetrics)
            parts.append(count_health(_state(store, cluster), clock()))
        text = exposition(parts) + (more() if more is not None else "")
        return Response(text, media_type=_METRICS)

    return router


def read_health(store: Store) -> Health:
    """Ask the store, which is thereby shown to answer."""
    clusters = [_cluster(_state(store, name)) for name in snapshot_clusters(store)]
    sinks = [SinkHealth(name, not reason, reason) for name, reason in read_reasons(store).items()]
    healthy = all(cluster.healthy for cluster in clusters) and all(sink.healthy for sink in sinks)
    return Health(healthy, store.database.where, clusters, sinks)


def _state(store: Store, cluster: str) -> ScrapeState:
    return read_state(store.database.where, cluster)


def _cluster(state: ScrapeState) -> ClusterHealth:
    return ClusterHealth(
        cluster=state.cluster,
        healthy=state.healthy,
        reason=state.reason,
        source=state.source,
        attempted=state.attempted,
        succeeded=state.succeeded,
    )
