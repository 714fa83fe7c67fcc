"""The energy of a run, and the part of it that was held without use."""

from __future__ import annotations

from jobsight.findings.data import RunData
from jobsight.findings.vocabulary import FigureSet


def add(data: RunData, figures: FigureSet) -> None:
    timeline = data.timeline
    watts = None if timeline is None else timeline.get("energy.cpu")
    if timeline is None or watts is None:
        for name in ("energy.total", "energy.idle"):
            figures.set(name, None, "the energy of the nodes was not measured")
        return
    joules = watts * timeline.width / 1e6
    whole = float(joules.sum())
    by_gpus = figures.values.get("gpu.energy")
    if data.gpu_count and not isinstance(by_gpus, float):
        for name in ("energy.total", "energy.idle"):
            figures.set(name, None, "the energy of the GPUs is not known")
        return
    figures.set("energy.total", whole + (by_gpus if isinstance(by_gpus, float) else 0.0))
    since = figures.values.get("idle.since")
    idle_gpus = figures.values.get("gpu.idle_energy", 0.0 if not data.gpu_count else None)
    if not isinstance(since, float) or not isinstance(idle_gpus, float):
        figures.set("energy.idle", None, "it is not known when the run was idle")
        return
    after = timeline.edges[:-1] >= since - data.at(0.0) - 1e-6
    figures.set("energy.idle", float(joules[after].sum()) + idle_gpus)
