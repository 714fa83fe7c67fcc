"""The state of a cluster: allocated and idle resources, the queue, and unavailable nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from jobsight.model import JobInfo
from jobsight.scheduler.cluster_metrics import count_tasks, is_usable
from jobsight.scheduler.records import JobRecord, NodeInfo, PartitionInfo
from jobsight.scheduler.state import ScrapeState, read_state
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store
from jobsight.util.outer import Duration, Time


class Amount(msgspec.Struct):
    """Amounts of a resource; the rest of the total is on unavailable nodes."""

    allocated: int = 0
    idle: int = 0
    total: int = 0

    @property
    def share(self) -> float | None:
        return self.allocated / self.total if self.total else None

    def add(self, total: int, allocated: int, usable: bool) -> None:
        allocated = min(allocated, total)
        self.allocated += allocated
        self.idle += total - allocated if usable else 0
        self.total += total


class PartitionRow(msgspec.Struct, kw_only=True):
    """One partition."""

    name: str
    state: str | None
    nodes: int
    nodes_usable: int
    cpus: Amount
    gpus: Amount
    time_limit: Duration | None = msgspec.field(name="time_limit_seconds")
    running: int
    pending: int


class UnavailableNode(msgspec.Struct):
    """A node that accepts no jobs, and the reason."""

    name: str
    state: str
    reason: str | None
    user: str | None
    since: Time | None


class ClusterView(msgspec.Struct, kw_only=True):
    """One cluster at the time of the last scrape."""

    cluster: str
    #: The last successful scrape, and why later ones failed.
    scraped: Time | None
    reason: str
    cpus: Amount
    memory: Amount = msgspec.field(name="memory_bytes")
    gpus: dict[str, Amount]
    node_states: dict[str, int]
    running: int
    pending: int
    #: Pending jobs by Slurm's reason, the most frequent first.
    pending_reasons: dict[str, int]
    partitions: list[PartitionRow]
    unavailable: list[UnavailableNode]


def view_cluster(store: Store, cluster: str) -> ClusterView:
    """Read the snapshot of the last scrape."""
    nodes = read_snapshot(store.database, cluster, "node", NodeInfo)
    pending = read_snapshot(store.database, cluster, "pending", JobRecord)
    running = store.open_runs(cluster)
    state = read_state(store.database, cluster)
    partitions = read_snapshot(store.database, cluster, "partition", PartitionInfo)
    running_in = Counter(run.partition or "" for run in running)
    return _view(cluster, state, nodes, partitions, pending, running_in)


def _view(
    cluster: str,
    state: ScrapeState,
    nodes: Sequence[NodeInfo],
    partitions: Sequence[PartitionInfo],
    pending: Sequence[JobRecord],
    running_in: Counter[str],
) -> ClusterView:
    cpus, memory, gpus = _sum(nodes)
    pending_in: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for record in pending:
        count = count_tasks(record)
        reasons[record.reason or "unknown"] += count
        for name in _partitions_of(record.info):
            pending_in[name] += count
    return ClusterView(
        cluster=cluster,
        scraped=state.succeeded,
        reason=state.reason,
        cpus=cpus,
        memory=memory,
        gpus=gpus,
        node_states=dict(Counter(shown_state(node) for node in nodes).most_common()),
        running=running_in.total(),
        pending=reasons.total(),
        pending_reasons=dict(reasons.most_common()),
        partitions=[
            _partition(partition, nodes, running_in[partition.name], pending_in[partition.name])
            for partition in partitions
        ],
        unavailable=[_unavailable(node) for node in nodes if not is_usable(node)],
    )


def shown_state(node: NodeInfo) -> str:
    """The state of a node with its flags: idle+drain."""
    words = [node.state or "UNKNOWN", *node.state_flags]
    return "+".join(words).lower()


def _partitions_of(info: JobInfo) -> list[str]:
    """A pending job may be submitted to several partitions."""
    return (info.partition or "").split(",")


def _sum(nodes: Iterable[NodeInfo]) -> tuple[Amount, Amount, dict[str, Amount]]:
    cpus, memory = Amount(), Amount()
    gpus: dict[str, Amount] = {}
    for node in nodes:
        usable = is_usable(node)
        cpus.add(node.cpus or 0, node.cpus_allocated or 0, usable)
        memory.add(node.memory or 0, node.memory_allocated or 0, usable)
        for name, count in node.gres.items():
            kind, _, model = name.partition(":")
            if kind == "gpu":
                amount = gpus.setdefault(model or "gpu", Amount())
                amount.add(count, node.gres_used.get(name, 0), usable)
    return cpus, memory, gpus


def _partition(
    partition: PartitionInfo, nodes: Sequence[NodeInfo], running: int, pending: int
) -> PartitionRow:
    members = [node for node in nodes if partition.name in node.partitions]
    cpus, _, by_type = _sum(members)
    gpus = Amount(
        sum(amount.allocated for amount in by_type.values()),
        sum(amount.idle for amount in by_type.values()),
        sum(amount.total for amount in by_type.values()),
    )
    return PartitionRow(
        name=partition.name,
        state=partition.state,
        nodes=len(members),
        nodes_usable=sum(map(is_usable, members)),
        cpus=cpus,
        gpus=gpus,
        time_limit=partition.time_limit,
        running=running,
        pending=pending,
    )


def _unavailable(node: NodeInfo) -> UnavailableNode:
    return UnavailableNode(
        name=node.name,
        state=shown_state(node),
        reason=node.reason,
        user=node.reason_user,
        since=node.reason_time,
    )
