"""A cluster at a glance: what is taken, what is free, what waits, and which nodes are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from jobsight.model import JobInfo
from jobsight.scheduler.cluster_metrics import count_tasks, is_usable
from jobsight.scheduler.records import JobRecord, NodeInfo, PartitionInfo
from jobsight.scheduler.snapshot import read_snapshot
from jobsight.scheduler.state import ScrapeState, read_state
from jobsight.store.store import Store


class Amount(msgspec.Struct):
    """So much of a resource; what is neither taken nor free belongs to nodes that take no jobs."""

    taken: int = 0
    free: int = 0
    total: int = 0

    @property
    def share(self) -> float | None:
        return self.taken / self.total if self.total else None

    def add(self, total: int, taken: int, usable: bool) -> None:
        taken = min(taken, total)
        self.taken += taken
        self.free += total - taken if usable else 0
        self.total += total


class PartitionRow(msgspec.Struct):
    """One partition."""

    name: str
    state: str | None
    nodes: int
    nodes_usable: int
    cpus: Amount
    gpus: Amount
    time_limit: int | None
    running: int
    waiting: int


class LostNode(msgspec.Struct):
    """A node that takes no jobs, and why."""

    name: str
    state: str
    reason: str | None
    user: str | None
    since: int | None


class ClusterView(msgspec.Struct):
    """One cluster as it was last scraped."""

    cluster: str
    #: When Slurm last answered, and why it did not since.
    seen: int | None
    reason: str
    cpus: Amount
    memory: Amount
    gpus: dict[str, Amount]
    node_states: dict[str, int]
    running: int
    waiting: int
    #: The waiting jobs by the reason that Slurm gives, the most frequent first.
    waiting_reasons: dict[str, int]
    partitions: list[PartitionRow]
    lost: list[LostNode]


def view_cluster(store: Store, cluster: str) -> ClusterView:
    """Read what the last scrape left in the store."""
    nodes = read_snapshot(store, cluster, "node", NodeInfo)
    waiting = read_snapshot(store, cluster, "waiting", JobRecord)
    running = store.open_runs(cluster)
    state = read_state(store.database.where, cluster)
    partitions = read_snapshot(store, cluster, "partition", PartitionInfo)
    running_in = Counter(run.partition or "" for run in running)
    return _view(cluster, state, nodes, partitions, waiting, running_in)


def _view(
    cluster: str,
    state: ScrapeState,
    nodes: Sequence[NodeInfo],
    partitions: Sequence[PartitionInfo],
    waiting: Sequence[JobRecord],
    running_in: Counter[str],
) -> ClusterView:
    cpus, memory, gpus = _sum(nodes)
    waiting_in: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for record in waiting:
        count = count_tasks(record)
        reasons[record.reason or "not said"] += count
        for name in _partitions_of(record.info):
            waiting_in[name] += count
    return ClusterView(
        cluster=cluster,
        seen=state.succeeded,
        reason=state.reason,
        cpus=cpus,
        memory=memory,
        gpus=gpus,
        node_states=dict(Counter(shown_state(node) for node in nodes).most_common()),
        running=running_in.total(),
        waiting=reasons.total(),
        waiting_reasons=dict(reasons.most_common()),
        partitions=[
            _partition(partition, nodes, running_in[partition.name], waiting_in[partition.name])
            for partition in partitions
        ],
        lost=[_lost(node) for node in nodes if not is_usable(node)],
    )


def shown_state(node: NodeInfo) -> str:
    """A node's state in one word, with the flags that matter behind it."""
    words = [node.state or "UNKNOWN", *node.state_flags]
    return "+".join(words).lower()


def _partitions_of(info: JobInfo) -> list[str]:
    """A job that waits may be asked for in several partitions."""
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
    partition: PartitionInfo, nodes: Sequence[NodeInfo], running: int, waiting: int
) -> PartitionRow:
    members = [node for node in nodes if partition.name in node.partitions]
    cpus, _, by_type = _sum(members)
    gpus = Amount(
        sum(amount.taken for amount in by_type.values()),
        sum(amount.free for amount in by_type.values()),
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
        waiting=waiting,
    )


def _lost(node: NodeInfo) -> LostNode:
    return LostNode(
        name=node.name,
        state=shown_state(node),
        reason=node.reason,
        user=node.reason_user,
        since=node.reason_time,
    )
