"""Cluster metrics for Prometheus: CPUs and GPUs by state, node states, jobs by state and partition,
and the GPU time and energy of all runs.

Those of Slurm are computed in each scrape of it and stored, so a scrape by Prometheus never queries
Slurm. The families are bounded: none has a label for a job or a user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from jobsight.prometheus.names import CLUSTER_GPUS
from jobsight.scheduler.records import JobRecord, NodeInfo
from jobsight.scheduler.state import ScrapeState
from jobsight.store.findings.read import KindTotal
from jobsight.store.findings.rows import HOURS
from jobsight.store.rollups.usage import GpuUsage

#: States in which a node accepts jobs, and flags with which it does not.
_USABLE = frozenset(
    {"ALLOCATED", "COMPLETING", "IDLE", "MAINT", "MIXED", "PERFCTRS", "POWER_UP", "RESERVED"}
)
_UNUSABLE_FLAGS = frozenset(
    {"DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN",
     "REBOOT_ISSUED", "REBOOT_REQUESTED", "INVALID_REG"}
)  # fmt: skip

Labels = tuple[tuple[str, str], ...]

#: The help of every family.
FAMILIES = {
    "slurm_cpus_alloc": "Allocated CPUs.",
    "slurm_cpus_idle": "Idle CPUs of usable nodes.",
    "slurm_cpus_drain": "Idle CPUs of nodes that accept no jobs.",
    "slurm_cpus_total": "All CPUs.",
    "slurm_gpus_alloc": "Allocated GPUs.",
    "slurm_gpus_idle": "Idle GPUs of usable nodes.",
    "slurm_gpus_drain": "Idle GPUs of nodes that accept no jobs.",
    "slurm_gpus_total": "All GPUs.",
    "slurm_node_states": "State of each node; one series per node.",
    "slurm_job_states": "Jobs by state, without ended jobs.",
    "slurm_partitions": "Pending and running jobs by partition.",
    "jobsight_cluster_nodes": "Nodes by state.",
    "jobsight_cluster_memory_bytes": "Memory of all nodes, allocated and total.",
    "jobsight_scrape_success": "Whether the last scrape of Slurm succeeded.",
    "jobsight_scrape_age_seconds": "Seconds since a scrape of Slurm last succeeded.",
    "jobsight_dead_letters": "Work that failed and is set aside, by kind.",
    "jobsight_findings": "Findings that hold, by kind.",
    "jobsight_findings_core_hours": "Core hours that they cost, by kind.",
    "jobsight_findings_gpu_hours": "GPU hours that they cost, by kind.",
    "jobsight_findings_memory_gb_hours": "Memory held for hours in GB, by kind.",
    "jobsight_findings_energy_kwh": "Energy that they cost, by kind.",
    "jobsight_left_out": "Rows and values of runs beyond their bounds, which were not stored.",
    **{family.name: f"{family.help}." for family in CLUSTER_GPUS.values()},
}


class Sample(msgspec.Struct, array_like=True):
    """One value."""

    family: str
    labels: Labels
    value: float


class ClusterMetrics(msgspec.Struct):
    """The samples of one cluster, as stored between two scrapes of Slurm."""

    values: list[Sample]


class _Sums:
    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._values: dict[tuple[str, Labels], float] = {}

    def add(self, family: str, value: float, **labels: str) -> None:
        key = family, (("cluster", self._cluster), *labels.items())
        self._values[key] = self._values.get(key, 0) + value

    def metrics(self) -> ClusterMetrics:
        return ClusterMetrics(
            [Sample(family, labels, v) for (family, labels), v in self._values.items()]
        )


def count_cluster(
    cluster: str, nodes: Iterable[NodeInfo], jobs: Iterable[JobRecord]
) -> ClusterMetrics:
    """The metrics of one scrape."""
    sums = _Sums(cluster)
    for node in nodes:
        _add_node(sums, node)
    for record in jobs:
        if record.info.end is None:
            count = count_tasks(record)
            state = (record.info.state or "unknown").lower()
            sums.add("slurm_job_states", count, name=state)
            sums.add("slurm_partitions", count, name=record.info.partition or "None")
    return sums.metrics()


def count_health(
    state: ScrapeState,
    now: int,
    dead_letters: Mapping[str, int] | None = None,
    left_out: int = 0,
) -> ClusterMetrics:
    """The success and age of the last scrape, the number of dead letters by kind, and what was
    left out of runs that have too much."""
    sums = _Sums(state.cluster)
    if state.attempted is not None:
        sums.add("jobsight_scrape_success", float(state.healthy))
    if state.succeeded is not None:
        sums.add("jobsight_scrape_age_seconds", max(0, now - state.succeeded) / 1e9)
    for kind, count in (dead_letters or {}).items():
        sums.add("jobsight_dead_letters", count, kind=kind)
    if left_out:
        sums.add("jobsight_left_out", left_out)
    return sums.metrics()


def count_gpus(usages: Iterable[GpuUsage]) -> ClusterMetrics:
    """The GPU time and energy of all runs by cluster and partition."""
    return ClusterMetrics(
        [
            Sample(
                f"jobsight_cluster_gpu_{name}",
                (("cluster", usage.cluster), ("partition", usage.partition or "None")),
                getattr(usage, name),
            )
            for usage in usages
            for name in ("held_seconds", "measured_seconds", "used_seconds", "energy_joules")
        ]
    )


def count_findings(totals: Iterable[KindTotal]) -> list[ClusterMetrics]:
    """The findings that hold and their costs; kinds are the names of rules, which are few."""
    by_cluster: dict[str, _Sums] = {}
    for each in totals:
        sums = by_cluster.setdefault(each.cluster, _Sums(each.cluster))
        sums.add("jobsight_findings", each.runs, kind=each.kind)
        for inner, (name, unit) in HOURS.items():
            amount = getattr(each.cost, inner)
            if amount:
                sums.add(f"jobsight_findings_{name}", amount / unit, kind=each.kind)
    return [sums.metrics() for sums in by_cluster.values()]


def exposition(clusters: Iterable[ClusterMetrics]) -> str:
    """The metrics of several clusters in Prometheus's text format, grouped by family."""
    families: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for metrics in clusters:
        for sample in metrics.values:
            families[sample.family].append(
                f"{sample.family}{_braces(sample.labels)} {sample.value:.15g}\n"
            )
    return "".join(
        f"# HELP {name} {FAMILIES[name]}\n# TYPE {name} gauge\n{''.join(lines)}"
        for name, lines in families.items()
        if lines
    )


def is_usable(node: NodeInfo) -> bool:
    """Whether a node accepts jobs, now or once it is idle."""
    return node.state in _USABLE and not _UNUSABLE_FLAGS & set(node.state_flags)


def _add_node(sums: _Sums, node: NodeInfo) -> None:
    usable = is_usable(node)
    where = {"reservation": node.reservation or "None"}
    total = node.cpus or 0
    taken = min(node.cpus_allocated or 0, total)
    _add_amounts(sums, "cpus", total, taken, usable, where)
    used = _gpus(node.gres_used)
    for kind, count in _gpus(node.gres).items():
        taken = min(used.get(kind, 0), count)
        _add_amounts(sums, "gpus", count, taken, usable, {"type": kind} | where)
    state = (node.state or "UNKNOWN").lower()
    sums.add("slurm_node_states", 1, name=node.name, slurm_node_states=state)
    shown = state if usable or state not in ("idle", "mixed", "allocated") else _flagged(node)
    sums.add("jobsight_cluster_nodes", 1, state=shown)
    for kind, value in (("allocated", node.memory_allocated), ("total", node.memory)):
        sums.add("jobsight_cluster_memory_bytes", value or 0, kind=kind)


def _flagged(node: NodeInfo) -> str:
    """The flag because of which a node accepts no jobs; more useful than "idle"."""
    return sorted(_UNUSABLE_FLAGS & set(node.state_flags))[0].lower()


def _add_amounts(
    sums: _Sums, what: str, total: int, taken: int, usable: bool, labels: Mapping[str, str]
) -> None:
    free = total - taken
    for family, value in (
        ("alloc", taken),
        ("idle", free if usable else 0),
        ("drain", 0 if usable else free),
        ("total", total),
    ):
        sums.add(f"slurm_{what}_{family}", value, **labels)


def _gpus(gres: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for name, count in gres.items():
        kind, _, model = name.partition(":")
        if kind == "gpu":
            found[model or "gpu"] += count
    return dict(found)


def count_tasks(record: JobRecord) -> int:
    """The jobs of a record: the pending tasks of an array have one record."""
    if not record.array_tasks:
        return 1
    count = 0
    for part in record.array_tasks.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        last, _, step = last.partition(":")
        try:
            count += (int(last or first) - int(first)) // int(step or 1) + 1
        except ValueError:
            # Slurm ends a long list with "..."; the rest is not counted.
            continue
    return max(count, 1)


def _braces(labels: Labels) -> str:
    return "{" + ",".join(_pairs(labels)) + "}"


def _pairs(labels: Labels) -> Iterable[str]:
    for name, value in labels:
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        yield f'{name}="{escaped}"'
