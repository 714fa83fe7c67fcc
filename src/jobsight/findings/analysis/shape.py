"""The shape of the allocation, compared with the nodes as the scheduler knows them."""

from __future__ import annotations

import math

from jobsight.findings.analysis.arithmetic import NO_CORES, NO_NODE_RECORDS, ratio
from jobsight.findings.data import RunData
from jobsight.findings.vocabulary import FigureSet

#: The CPUs of a run fill its nodes if they are at least this share of all.
_FILLED = 0.9


def add(data: RunData, figures: FigureSet) -> None:
    per_node = data.cores / data.node_count if data.cores and data.node_count else None
    figures.set("node.cores_per_node", per_node, NO_CORES)
    shapes = data.shapes
    sizes = [shape.cpus for shape in shapes if shape.cpus]
    memories = [shape.memory for shape in shapes if shape.memory]
    by_core = [shape.memory_per_core for shape in shapes if shape.memory_per_core]
    figures.set("node.cores", min(sizes, default=None), NO_NODE_RECORDS)
    figures.set("node.memory", min(memories, default=None), NO_NODE_RECORDS)
    figures.set("memory.per_core_of_node", min(by_core, default=None), NO_NODE_RECORDS)
    if per_node is None or not sizes:
        reason = NO_CORES if per_node is None else NO_NODE_RECORDS
        figures.set("memory.cores_fill_node", None, reason)
    else:
        figures.set("memory.cores_fill_node", per_node >= _FILLED * max(sizes))
    _add_minimum(data, figures)
    _add_large_memory(data, figures)
    _add_gpus(data, figures)


def _add_minimum(data: RunData, figures: FigureSet) -> None:
    """The fewest nodes of this kind that have its CPUs, its used memory and its GPUs."""
    cores = max((shape.cpus or 0 for shape in data.shapes), default=0)
    memory = max((shape.memory or 0 for shape in data.shapes), default=0)
    gpus = max((shape.gpus for shape in data.shapes), default=0)
    if not cores or data.cores is None:
        figures.set("node.minimum", None, NO_NODE_RECORDS if not cores else NO_CORES)
        return
    needed = [data.cores / cores]
    used = figures.values.get("memory.used", figures.values.get("memory.requested"))
    if isinstance(used, float) and memory:
        needed.append(used / memory)
    if data.gpu_count and gpus:
        needed.append(data.gpu_count / gpus)
    figures.set("node.minimum", max(math.ceil(max(needed)), 1))


def _add_large_memory(data: RunData, figures: FigureSet) -> None:
    """Whether the nodes have more memory by core than most of the cluster: of nodes with GPUs for a
    run with GPUs, else of those without."""
    usual = data.cluster.usual.get(data.gpu_count > 0)
    own = [by_core for shape in data.shapes if (by_core := shape.memory_per_core)]
    if usual is None or not own:
        figures.set("node.large_memory", None, NO_NODE_RECORDS)
        figures.set("node.normal_memory", None, NO_NODE_RECORDS)
        return
    figures.set("node.large_memory", min(own) > usual.large)
    figures.set("node.normal_memory", usual.normal, NO_NODE_RECORDS)


def _add_gpus(data: RunData, figures: FigureSet) -> None:
    names = ("cores_per_gpu", "memory_per_gpu", "node_cores_per_gpu", "node_memory_per_gpu")
    count = data.gpu_count
    figures.set("gpu.count", count)
    if not count:
        for name in (*names, "nodes_needed"):
            figures.set(f"gpu.{name}", None, "the job has no GPU")
        return
    figures.set("gpu.cores_per_gpu", ratio(data.cores, count), NO_CORES)
    requested = figures.values.get("memory.requested")
    by_gpu = requested / count if isinstance(requested, float) else None
    figures.set("gpu.memory_per_gpu", by_gpu, "no memory was requested")
    shapes = [shape for shape in data.shapes if shape.gpus]
    cores = [shape.cpus / shape.gpus for shape in shapes if shape.cpus]
    memory = [shape.memory / shape.gpus for shape in shapes if shape.memory]
    figures.set("gpu.node_cores_per_gpu", min(cores, default=None), NO_NODE_RECORDS)
    figures.set("gpu.node_memory_per_gpu", min(memory, default=None), NO_NODE_RECORDS)
    most = max((shape.gpus for shape in shapes), default=0)
    figures.set("gpu.nodes_needed", math.ceil(count / most) if most else None, NO_NODE_RECORDS)
