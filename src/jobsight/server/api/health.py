"""API routes for monitoring: health, the server's /metrics, and service discovery of agents."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from jobsight.errors import ConfigError
from jobsight.model import SECOND
from jobsight.scheduler.cluster_metrics import (
    ClusterMetrics,
    count_findings,
    count_gpus,
    count_health,
    exposition,
)
from jobsight.scheduler.hostlist import expand_hosts
from jobsight.scheduler.records import NodeInfo
from jobsight.scheduler.sinks.feeder import read_reasons
from jobsight.scheduler.state import ScrapeState, attempted_clusters, read_state
from jobsight.server.api.common import Text, check_parameters, json_reply, replies
from jobsight.server.ingest import IngestCounts
from jobsight.store.checkpoints import Checkpoint
from jobsight.store.dead_letters import DeadLetterCount, count_dead_letters
from jobsight.store.findings.read import totals_by_kind
from jobsight.store.read.nodes import agents_since
from jobsight.store.rollups.usage import GpuUsage, gpu_usage
from jobsight.store.snapshot import read_snapshot, snapshot_clusters
from jobsight.store.store import Store
from jobsight.store.write.excess import read_excess
from jobsight.util.outer import Duration, Time
from jobsight.util.workers import State, WorkerState, worker_states

_METRICS = "text/plain; version=0.0.4; charset=utf-8"
#: Partitions with GPU time in /metrics, and how long it is kept: the rollups of years are summed.
_MAX_PARTITIONS = 200
_GPU_USAGE_AGE = 60 * SECOND


class ClusterHealth(msgspec.Struct):
    """The state of the scraping of one cluster, and its work that was set aside."""

    cluster: str
    healthy: bool
    #: Why the last scrape failed, which leaves the stored data unchanged, and dead letters.
    reason: str
    #: The source in use, and why it was chosen.
    source: str
    attempted: Time | None
    succeeded: Time | None
    #: Work that failed and is set aside; see `jobsight store dead-letters`.
    dead_letters: int = 0
    #: Rows and values of runs that have too many and were not stored, and the first of them. The
    #: cluster is healthy nevertheless: a user can cause it, and nothing else is affected.
    left_out: int = 0
    left_out_reason: str = ""


class SinkHealth(msgspec.Struct):
    """The state of one sink."""

    sink: str
    healthy: bool
    reason: str


class WorkerHealth(msgspec.Struct):
    """The state of one background worker of the server: retention, software, archive ..."""

    worker: str
    healthy: bool
    #: Why it is not healthy; empty if it is.
    reason: str
    #: `waiting` and `working` are healthy; `failing`: the last call failed; `overdue`: a call takes
    #: too long, or has not begun; `ended`: the thread is gone until the server is restarted.
    state: State
    started: Time | None
    #: When a call last succeeded, and how long ago that is.
    succeeded: Time | None
    success_age: Duration | None
    #: When a call last failed, and why; kept after later successes.
    failed: Time | None
    error: str
    #: When the next call begins; null while one is in progress, or if none is planned.
    next_run: Time | None
    #: Calls since the start of the server, and how many of them failed.
    calls: int
    failures: int


class IngestHealth(msgspec.Struct):
    """Batches that this server received since its start."""

    healthy: bool
    #: Why the last batch could not be stored by a fault of the server; empty if it was.
    reason: str
    #: When a batch was last stored.
    succeeded: Time | None
    failed: Time | None
    error: str
    #: Batches by status: `stored`, `duplicate`, `refused` (a fault of the sender), `failed` (a
    #: fault of the server; agents send these again).
    batches: dict[str, int]
    #: Values out of bounds that were not stored.
    left_out: int


class Health(msgspec.Struct):
    """The state of the server; healthy if every part is."""

    healthy: bool
    store: str
    clusters: list[ClusterHealth]
    sinks: list[SinkHealth]
    workers: list[WorkerHealth] = []
    #: None in a process that receives no batches.
    ingest: IngestHealth | None = None


def create_health_router(
    store: Store,
    clock: Callable[[], int] = time.time_ns,
    more: Sequence[Callable[[], str]] = (),
    ingest: IngestCounts | None = None,
) -> APIRouter:
    """Health and /metrics; each of ``more`` returns further text for /metrics."""
    router = APIRouter()
    gpus = _GpuUsages(store, clock)

    @router.get("/api/v1/health", tags=["server"], responses=replies(Health, 503))
    def health() -> Response:
        """The state of each part: store, ingest, scraping of each cluster, sinks and workers."""
        return json_reply(read_health(store, ingest))

    @router.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        """Cluster metrics for Prometheus, from the last scrape of Slurm and from the rollups."""
        parts = [count_gpus(gpus.read())]
        set_aside, excess = count_dead_letters(store.database), read_excess(store.database)
        for cluster in _clusters(store, set_aside, excess):
            kinds = {each.kind: each.letters for each in set_aside if each.cluster == cluster}
            parts += read_snapshot(store.database, cluster, "cluster_metrics", ClusterMetrics)
            left_out = excess[cluster].value if cluster in excess else 0
            parts.append(count_health(_state(store, cluster), clock(), kinds, left_out))
        parts += count_findings(totals_by_kind(store.database))
        text = exposition(parts) + "".join(each() for each in more)
        return Response(text, media_type=_METRICS)

    return router


class _GpuUsages:
    """The GPU time of all runs, read once a minute however often /metrics is scraped."""

    def __init__(self, store: Store, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at: int | None = None
        self._usages: list[GpuUsage] = []

    def read(self) -> list[GpuUsage]:
        with self._lock:
            now = self._clock()
            if self._read_at is None or not 0 <= now - self._read_at < _GPU_USAGE_AGE:
                with self._store.database.read() as connection:
                    self._usages = gpu_usage(connection, _MAX_PARTITIONS)
                self._read_at = now
            return self._usages


def read_health(store: Store, ingest: IngestCounts | None = None) -> Health:
    """Read the state from the store, which also checks that the store is available."""
    set_aside, excess = count_dead_letters(store.database), read_excess(store.database)
    clusters = []
    for name in _clusters(store, set_aside, excess):
        count = sum(each.letters for each in set_aside if each.cluster == name)
        clusters.append(_cluster(_state(store, name), count, excess.get(name)))
    sinks = [SinkHealth(name, not reason, reason) for name, reason in read_reasons(store).items()]
    workers = [_worker(state, time.time_ns()) for state in worker_states()]
    received = [_ingest(ingest)] if ingest is not None else []
    parts: list[_Part] = [*clusters, *sinks, *workers, *received]
    healthy = all(part.healthy for part in parts)
    return Health(healthy, store.database.where, clusters, sinks, workers, *received)


_Part: TypeAlias = ClusterHealth | SinkHealth | WorkerHealth | IngestHealth


def _worker(state: WorkerState, now: int) -> WorkerHealth:
    return WorkerHealth(
        worker=state.name,
        healthy=state.healthy,
        reason=state.reason,
        state=state.state,
        started=state.started,
        succeeded=state.succeeded,
        success_age=None if state.succeeded is None else max(0, now - state.succeeded),
        failed=state.failed,
        error=state.error,
        next_run=state.next_run,
        calls=state.calls,
        failures=state.failures,
    )


def _ingest(counts: IngestCounts) -> IngestHealth:
    return IngestHealth(
        healthy=not counts.reason,
        reason=counts.reason,
        succeeded=counts.stored,
        failed=counts.failed,
        error=counts.error,
        batches=dict(counts.batches),
        left_out=counts.left_out,
    )


def _clusters(
    store: Store, set_aside: Sequence[DeadLetterCount], excess: Collection[str]
) -> list[str]:
    """All clusters with a snapshot, those whose scrape has never succeeded, those with dead letters
    and those with runs that have too much."""
    scraped = {*snapshot_clusters(store.database), *attempted_clusters(store.database)}
    return sorted(scraped | {each.cluster for each in set_aside} | {*excess})


def _state(store: Store, cluster: str) -> ScrapeState:
    return read_state(store.database, cluster)


def _cluster(state: ScrapeState, dead_letters: int, excess: Checkpoint | None) -> ClusterHealth:
    # A cluster that nobody scrapes is listed for its dead letters, or for what was left out.
    scraped_well = state.healthy or state.attempted is None
    reasons = [state.reason] if state.reason else []
    if dead_letters:
        letters = "letter" if dead_letters == 1 else "letters"
        reasons.append(f"{dead_letters:,} dead {letters}; see `jobsight store dead-letters`")
    return ClusterHealth(
        cluster=state.cluster,
        healthy=scraped_well and not dead_letters,
        reason="; ".join(reasons),
        source=state.source,
        attempted=state.attempted,
        succeeded=state.succeeded,
        dead_letters=dead_letters,
        left_out=excess.value if excess else 0,
        left_out_reason=(excess.text or "") if excess else "",
    )


#: An agent without jobs sends nothing, so it is listed for some days after its last batch.
_MAX_SILENT_DAYS = 7.0


class TargetGroup(msgspec.Struct):
    """One agent: the address of its exporter, and labels for relabelling."""

    targets: list[str]
    labels: dict[str, str]


#: A host name (RFC 1123) whose last label is not a number, as it is in an IPv4 address.
_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*"
    r"(?![0-9]+\Z)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?",
    re.ASCII | re.IGNORECASE,
)


def listed_nodes(expressions: Iterable[str]) -> frozenset[str]:
    """The names in the host list expressions of ``server.discovery_nodes``."""
    names: set[str] = set()
    for expression in expressions:
        try:
            names.update(expand_hosts(expression))
        except ValueError as error:
            raise ConfigError(f"server.discovery_nodes: {error}") from None
    return frozenset(names)


def create_discovery_router(
    store: Store,
    clock: Callable[[], int] = time.time_ns,
    listed: frozenset[str] = frozenset(),
) -> APIRouter:
    """Service discovery; ``listed`` are nodes that it offers besides those of the scheduler."""
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
        groups = target_groups(store, cluster=cluster, port=port, since=since, listed=listed)
        return Response(msgspec.json.encode(groups), media_type="application/json")

    return router


def target_groups(
    store: Store,
    *,
    cluster: str | None,
    port: int,
    since: int,
    listed: frozenset[str] = frozenset(),
) -> list[TargetGroup]:
    """The agents that have sent a batch since then, by cluster and node.

    A node chooses the name in its batches, and Prometheus sends its password there. So only nodes
    that the scheduler or the list knows are offered. Where neither knows any, the name must have a
    single label: it is resolved within the site's own domain.
    """
    sent = agents_since(store.database, since, cluster)
    known = {
        name: _scheduler_nodes(store, name) | listed for name in {agent.cluster for agent in sent}
    }
    return [
        TargetGroup(
            [f"{agent.node}:{port}"],
            {
                "__meta_jobsight_cluster": agent.cluster,
                "__meta_jobsight_node": agent.node,
                "__meta_jobsight_version": agent.version,
            },
        )
        for agent in sent
        if _HOST_NAME.fullmatch(agent.node)
        and (agent.node in known[agent.cluster] if known[agent.cluster] else "." not in agent.node)
    ]


def _scheduler_nodes(store: Store, cluster: str) -> frozenset[str]:
    return frozenset(node.name for node in read_snapshot(store.database, cluster, "node", NodeInfo))


def _replies() -> dict[int | str, dict[str, Any]]:
    described = replies(TargetGroup, 422, 503)
    # Prometheus requires a list, not an object.
    content = described[200]["content"]["application/json"]
    content["schema"] = {"type": "array", "items": content["schema"]}
    return described
