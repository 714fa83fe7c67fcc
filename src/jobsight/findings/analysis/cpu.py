"""The use of the allocated CPUs, over time and over the nodes."""

from __future__ import annotations

from jobsight.findings.analysis.arithmetic import NO_CORES, NO_TIME, quantile, ratio, total
from jobsight.findings.data import RunData
from jobsight.findings.timeline import CPU
from jobsight.findings.vocabulary import FigureSet
from jobsight.model import SECOND

#: CPU seconds of a node below which nothing but Slurm ran on it.
_NOTHING = 1.0
#: The same as a share of one CPU: the daemon of a launcher waits for hours on such a node.
_NOTHING_SHARE = 0.001
#: Names of nodes in a figure.
MAX_NAMES = 100
#: Nodes are compared in intervals in which the busiest used at least this share of its CPUs.
_BUSY = 0.05


def add(data: RunData, figures: FigureSet) -> None:
    used = total(part.cpu_time for part in data.totals)
    if used is None:
        used = data.stored.cpu_time
    used = None if used is None else used / SECOND
    not_known = NO_CORES if data.cores is None else NO_TIME
    held = data.cores * data.span if data.cores and data.span else None
    figures.set("cpu.cores", data.cores, NO_CORES)
    figures.set("cpu.time", used)
    figures.set("cpu.held", held, not_known)
    unknown = "" if used is None else not_known
    idle = None if held is None or used is None else max(held - used, 0.0)
    figures.set("cpu.idle", idle, unknown)
    figures.set("cpu.share", ratio(used, held), unknown)
    figures.set("cpu.mean_cores", ratio(used, data.span), unknown)
    system = total(part.cpu_system for part in data.totals)
    user = total(part.cpu_user for part in data.totals)
    if system is not None and user is not None:
        figures.set("cpu.system_share", ratio(system, system + user), "no CPU time was used")
    _add_over_time(data, figures)
    _add_cores(data, figures)
    _add_unused_nodes(data, figures)
    _add_imbalance(data, figures)


def _add_over_time(data: RunData, figures: FigureSet) -> None:
    busy = None if data.timeline is None else data.timeline.get(CPU)
    names = ("cpu.peak_cores", "cpu.cores_95", "cpu.steadiness")
    if busy is None or not len(busy):
        for name in names:
            figures.set(name, None, data.timeline_reason)
        return
    peak = float(busy.max())
    figures.set("cpu.peak_cores", peak)
    figures.set("cpu.cores_95", quantile(busy, 0.95))
    figures.set("cpu.steadiness", ratio(float(busy.mean()), peak), "no CPU time was used")


def _add_cores(data: RunData, figures: FigureSet) -> None:
    """The least used core of an equal share, on the node where it is least."""
    if not data.cores_of_node:
        figures.set("cpu.core_balance", None, "the CPU time of single cores was not measured")
        return
    if data.cores is None:
        figures.set("cpu.core_balance", None, NO_CORES)
        return
    count = max(round(data.cores / max(data.node_count, 1)), 1)
    shares = []
    for times in data.cores_of_node.values():
        # The cores of the job have the most time; others ran some of its processes before binding.
        busiest = sorted(times, reverse=True)[:count]
        busiest += [0.0] * (count - len(busiest))
        if sum(busiest) > 0:
            shares.append(min(busiest) / (sum(busiest) / count))
    figures.set("cpu.core_balance", min(shares, default=None), "no CPU time was used")


def _add_unused_nodes(data: RunData, figures: FigureSet) -> None:
    measured = [
        node for node in data.nodes if node.totals is not None and node.totals.cpu_time is not None
    ]
    if not measured:
        return
    used: dict[str, float] = {}
    for node in measured:
        cpu_time = (node.totals.cpu_time if node.totals else 0) or 0
        used[node.node] = used.get(node.node, 0.0) + cpu_time / SECOND
    nothing = max(_NOTHING, _NOTHING_SHARE * data.span)
    unused = [
        name
        for name, seconds in used.items()
        if seconds < nothing and not data.programs_of_node[name]
    ]
    figures.set("cpu.nodes_unused", len(unused))
    figures.set("cpu.unused_node_names", unused[:MAX_NAMES])


def _add_imbalance(data: RunData, figures: FigureSet) -> None:
    timeline = data.timeline
    names = ("cpu.node_imbalance", "cpu.imbalance_time")
    if timeline is None or data.node_count < 2:
        reason = data.timeline_reason if data.node_count > 1 else "the run has one node"
        for name in names:
            figures.set(name, None, reason)
        return
    rates = timeline.node_matrix()
    if len(rates) < 2:
        for name in names:
            figures.set(name, None, "fewer than two nodes have time series")
        return
    highest, lowest = rates.max(axis=0), rates.min(axis=0)
    floor = _BUSY * (data.cores / data.node_count if data.cores else 1.0)
    busy = highest > floor
    widths = timeline.node_widths[busy]
    if not len(widths):
        figures.set("cpu.node_imbalance", 0.0)
        figures.set("cpu.imbalance_time", 0.0)
        return
    spread = 1.0 - lowest[busy] / highest[busy]
    figures.set("cpu.node_imbalance", float((spread * widths).sum() / widths.sum()))
    waited = (highest * len(rates) - rates.sum(axis=0))[busy]
    figures.set("cpu.imbalance_time", float((waited * widths).sum()))
