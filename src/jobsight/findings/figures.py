"""Computes the figures of a run, which the conditions of the rules use.

:func:`compute_figures` calls the themes of :mod:`jobsight.findings.analysis`. The figures of the
group "history" need other runs and are added by :mod:`jobsight.findings.history`.
"""

from __future__ import annotations

from typing import Final

from jobsight.findings.analysis import (
    cpu,
    energy,
    gpu,
    gpu_waits,
    idle,
    io,
    memory,
    pressure,
    programs,
    run,
    shape,
    steps,
)
from jobsight.findings.data import LATE, RunData
from jobsight.findings.scope import ALL, Scope
from jobsight.findings.vocabulary import FigureSet, Group
from jobsight.model import SECOND, Coverage
from jobsight.store.read.queries import StoredNode
from jobsight.store.write.gpus import measured_time

#: The groups of figures that nodes measure.
_MEASURED: Final[tuple[Group, ...]] = ("cpu", "memory", "io", "executables")
#: In this order: some use the figures of earlier ones.
_THEMES: Final = {
    "run": run,
    "cpu": cpu,
    "memory": memory,
    # Of the shares of time without the others, too.
    "stalls": pressure,
    "io": io,
    "programs": programs,
    "idle": idle,
    "steps": steps,
    "shape": shape,
    "gpu": gpu,
    "waits": gpu_waits,
    "energy": energy,
}
#: CPU seconds of a node that may belong to no program: those of programs of milliseconds.
_NOT_ATTRIBUTED: Final = 10.0


def compute_figures(data: RunData, scope: Scope = ALL) -> FigureSet:
    """The figures of a run but those of the group "history"."""
    figures = FigureSet()
    _add_coverage(data, figures)
    for name, theme in _THEMES.items():
        if scope.has(name):
            theme.add(data, figures)
    return figures


def _add_coverage(data: RunData, figures: FigureSet) -> None:
    """The share of the run that the figures of each group stand for: the mean over its nodes, of
    which those that sent nothing count as zero."""
    count = max(data.node_count, len({node.node for node in data.nodes}))
    for group in _MEASURED:
        parts: dict[str, float] = {}
        reasons: dict[str, None] = {}
        for node in data.nodes:
            coverage = node.coverage.get(group)
            share = 0.0 if coverage is None else share_of(coverage)
            if data.span:
                share *= _reported(data, node)
            parts[node.node] = min(parts.get(node.node, 1.0), share)
            if coverage is not None and coverage.reason and share < 1:
                reasons[coverage.reason] = None
        figures.coverage[group] = sum(parts.values()) / count if count else 0.0
        if not data.nodes:
            figures.unknown[group] = "no node has reported the run"
        elif figures.coverage[group] == 0:
            figures.unknown[group] = next(iter(reasons), "it was not measured")
    figures.coverage["executables"] = _attributed(data, figures.coverage["executables"])
    figures.coverage["scheduler"] = 1.0
    if not data.gpu_count:
        figures.coverage["gpu"] = 0.0
        figures.unknown["gpu"] = "the job has no GPU"
        return
    held = sum(gpu.use.held_time for gpu in data.gpus)
    known = sum(measured_time(gpu.use) for gpu in data.gpus)
    # GPUs are held as long as the run lasts.
    held = max(held, round(len(data.gpus) * (data.span - LATE) * SECOND))
    figures.coverage["gpu"] = known / held if held else 0.0
    requested = data.info.gpus or 0
    if data.gpus and len(data.gpus) < requested:
        figures.coverage["gpu"] *= len(data.gpus) / requested
    if not data.gpus:
        figures.unknown["gpu"] = "no node has reported the GPUs"


def share_of(coverage: Coverage) -> float:
    """The share of the job that figures of this coverage stand for."""
    if coverage.quality in ("failed", "missing"):
        return 0.0
    known = [share for share in (coverage.time_share, coverage.cpu_share) if share is not None]
    return 1.0 if coverage.quality == "exact" else min(max(min(known, default=1.0), 0.0), 1.0)


def _reported(data: RunData, node: StoredNode) -> float:
    """The share of the run that a node has reported; its last batch may be a minute old."""
    missing = data.span - data.measured_until(node)
    return 1.0 if missing <= LATE else 1.0 - missing / data.span


def _attributed(data: RunData, coverage: float) -> float:
    """The coverage of the executables: the nodes' shares are those of their last batch, and the
    totals may be newer."""
    used = sum(part.cpu_time or 0 for part in data.totals) / SECOND
    attributed = sum(program.cpu for program in data.programs)
    if used - attributed <= _NOT_ATTRIBUTED * max(len(data.totals), 1):
        return coverage
    return min(coverage, attributed / used)
