"""What a run is compared with: the nodes of its cluster, and the programs of other runs.

Both are read from the store once for many runs. The sizes of nodes come from the last scrape of
the scheduler, never from a table that a person keeps.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from jobsight.model import SECOND
from jobsight.scheduler.fields import gpus_of
from jobsight.scheduler.records import NodeInfo
from jobsight.store.snapshot import read_snapshot

if TYPE_CHECKING:
    from jobsight.store.read.queries import PathUse
    from jobsight.store.store import Store

#: How long what was read is used.
_NODES_AGE: Final = 300 * SECOND
_HABITS_AGE: Final = 3600 * SECOND
#: The newest uses of a program that its habit is computed from, and the fewest starts in them.
_HABIT_USES: Final = 5000
_HABIT_STARTS: Final = 20
#: Other users whose runs show a habit.
_HABIT_USERS: Final = 2
_MAX_HABITS: Final = 10_000
#: A node has much memory if it has so many times the usual memory by core.
_LARGE: Final = 1.5


class NodeShape(NamedTuple):
    """The size of a node. None is not known."""

    cpus: int | None
    #: Bytes.
    memory: int | None
    gpus: int
    partitions: tuple[str, ...]

    @property
    def memory_per_core(self) -> float | None:
        return self.memory / self.cpus if self.memory and self.cpus else None


class ClusterShape(NamedTuple):
    """The nodes of a cluster by name, and what is usual of those with and without GPUs."""

    nodes: dict[str, NodeShape]
    usual: dict[bool, UsualMemory]


class UsualMemory(NamedTuple):
    """The memory of most nodes."""

    #: Bytes by core above which a node has much memory.
    large: float
    #: Bytes of a node that has no more than that.
    normal: float | None


class Surroundings:
    """Reads and keeps what many runs are compared with; not thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._nodes: dict[str, tuple[int, ClusterShape]] = {}
        self._habits: OrderedDict[bytes, tuple[int, list[PathUse]]] = OrderedDict()

    def cluster(self, cluster: str, now: int) -> ClusterShape:
        """The nodes of a cluster; none if the cluster was never scraped."""
        kept = self._nodes.get(cluster)
        if kept is None or abs(now - kept[0]) > _NODES_AGE:
            records = read_snapshot(self._store.database, cluster, "node", NodeInfo)
            nodes = {node.name: shape_of(node) for node in records}
            kept = self._nodes[cluster] = (now, ClusterShape(nodes, _usual_memory(nodes)))
        return kept[1]

    def failure_habit(self, path: bytes, user: str | None, now: int) -> float | None:
        """The share of the starts of a program that fail in runs of other users: their median, so
        that one script that fails in each of its thousand starts is nobody's habit. None if there
        are few users or starts. The own runs say nothing: what is wrong may be wrong in all."""
        kept = self._habits.get(path)
        if kept is None or abs(now - kept[0]) > _HABITS_AGE:
            kept = self._habits[path] = (now, self._store.failures_of(path, _HABIT_USES))
            if len(self._habits) > _MAX_HABITS:
                self._habits.popitem(last=False)
        starts: Counter[str | None] = Counter()
        failed: Counter[str | None] = Counter()
        for use in kept[1]:
            if use.user != user:
                starts[use.user] += max(use.executions, use.failures)
                failed[use.user] += use.failures
        if len(starts) < _HABIT_USERS or starts.total() < _HABIT_STARTS:
            return None
        return median(failed[each] / starts[each] for each in starts if starts[each])


def shape_of(node: NodeInfo) -> NodeShape:
    """The size of a node of the scheduler."""
    by_name = sum(count for name, count in node.gres.items() if name.partition(":")[0] == "gpu")
    return NodeShape(
        cpus=node.cpus or None,
        memory=node.memory or None,
        gpus=by_name or sum(gpus_of(node.tres).values()),
        partitions=node.partitions,
    )


def _usual_memory(nodes: dict[str, NodeShape]) -> dict[bool, UsualMemory]:
    usual = {}
    for with_gpus in (False, True):
        own = [
            (by_core, shape.memory or 0)
            for shape in nodes.values()
            if (shape.gpus > 0) == with_gpus and (by_core := shape.memory_per_core)
        ]
        if own:
            large = _LARGE * median(by_core for by_core, _ in own)
            normal = [memory for by_core, memory in own if by_core <= large]
            usual[with_gpus] = UsualMemory(large, median(normal) if normal else None)
    return usual
