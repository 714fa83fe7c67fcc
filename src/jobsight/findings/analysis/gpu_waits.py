"""What the GPUs of a run waited for.

The cause is decided for each interval by what the host did in it, in the order of :func:`_causes`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from jobsight.findings.analysis import activity
from jobsight.findings.analysis.gpu import NOT_MEASURED, Mask, held_gpus, is_unused
from jobsight.findings.analysis.programs import cpu_series
from jobsight.findings.data import RunData
from jobsight.findings.program_names import is_waiting
from jobsight.findings.timeline import CPU, Floats, Timeline
from jobsight.findings.vocabulary import FigureSet

#: Intervals in which less than this share of the GPUs was idle are not waiting.
_WAITING: Final = 0.2
#: Programs among which the one that used the CPUs is found.
_MAX_PROGRAMS: Final = 100

SERIAL, LOADING, STORAGE = "serial host code", "data loading", "storage"
MEMORY, NETWORK, NOTHING, STARTING = "memory", "network", "nothing", "start-up"
CAUSES: Final = (STARTING, MEMORY, STORAGE, SERIAL, LOADING, NETWORK, NOTHING)


def add(data: RunData, figures: FigureSet) -> None:
    """Idle GPU time up to the last use, split over its causes."""
    if not data.gpus:
        # The reason is that of the group.
        return
    timeline = data.timeline
    names = ("waiting", "wait_cause", "wait_share", "wait_program", "wait_causes")
    active = activity.gpus_active(data)
    cpu = None if timeline is None else timeline.get(CPU)
    if timeline is None or active is None or cpu is None:
        for name in names:
            figures.set(f"gpu.{name}", None, NOT_MEASURED)
        return
    last = activity.end_of_work(active > 0)
    if not last or not (active[:last] > 0).any():
        for name in names:
            figures.set(f"gpu.{name}", None, "no GPU was ever used")
        return
    first = int(np.flatnonzero(active > 0)[0])
    gpus, _ = held_gpus(data, timeline)
    # A GPU that was never used waited for nothing.
    gpus = np.maximum(gpus - sum(is_unused(gpu.use) for gpu in data.gpus), 0.0)
    idle = np.maximum(gpus - active, 0.0)
    if timeline.gpus.all_known.any():
        # Shorter than the sampling interval: the part of it in which nothing ran.
        spare = np.maximum(timeline.gpus.known - timeline.gpus.total, 0.0)
        idle = np.maximum(idle, spare)
    idle = np.where(idle >= _WAITING * np.maximum(gpus, 1e-9), idle, 0.0)
    idle[last:] = 0.0
    weights = idle * timeline.width
    between = float(weights[first:last].sum())
    figures.set("gpu.waiting", between)
    causes = _causes(data, timeline, cpu, gpus)
    causes[:first] = CAUSES.index(STARTING)
    by_cause = np.bincount(causes, weights, len(CAUSES))
    whole = float(by_cause.sum())
    if whole <= 0:
        for name in names[1:]:
            figures.set(f"gpu.{name}", None, "the GPUs did not wait")
        return
    main = int(by_cause.argmax())
    figures.set("gpu.wait_cause", CAUSES[main])
    figures.set("gpu.wait_share", float(by_cause[main]) / whole)
    order = np.argsort(-by_cause)
    figures.set(
        "gpu.wait_causes",
        [
            f"{CAUSES[place]} {by_cause[place] / whole:.0%}"
            for place in order
            if by_cause[place] > 0
        ],
    )
    program = _busiest(data, timeline, weights * (causes == main) > 0)
    figures.set("gpu.wait_program", program, "no program used the CPUs meanwhile")


def _causes(data: RunData, timeline: Timeline, cpu: Floats, gpus: Floats) -> npt.NDArray[np.intp]:
    """What the host did in each interval, as an index of CAUSES; the first that holds counts."""
    nodes = max(len(timeline.nodes), 1)

    def rate(name: str) -> Floats:
        column = timeline.get(name)
        return np.zeros(len(cpu)) if column is None else column / nodes

    cores = float(data.cores) if data.cores else np.inf
    waiting_for_io = (rate("pressure.io_full") > 0.2) | (
        # Without pressure: threads that wait for a device while the CPUs are nearly idle.
        (rate("tasks.blocked") >= 1.0) & (cpu < 0.9 * nodes)
    )
    # 20 MB a second from storage while the CPUs are nearly idle.
    waiting_for_io |= (rate("io.read_bytes") > 20e6) & (cpu < 0.6 * nodes)
    serial = (cpu >= 0.6) & (cpu < 1.5 * np.maximum(gpus, 1.0)) & (cpu < 0.7 * max(cores, 2.2))
    conditions = {
        MEMORY: rate("pressure.memory_full") > 0.2,
        STORAGE: waiting_for_io,
        SERIAL: serial,
        LOADING: cpu >= 0.6,
        NETWORK: _network(timeline) > 10e6,
    }
    result = np.full(len(cpu), CAUSES.index(NOTHING))
    for cause in reversed(conditions):
        result[conditions[cause]] = CAUSES.index(cause)
    return result


def _network(timeline: Timeline) -> Floats:
    """Bytes a second and node that the nodes received; other jobs of the node are included."""
    columns = [
        column
        for name in timeline.names()
        if name.startswith("network.") and (column := timeline.get(name)) is not None
    ]
    if not columns:
        return np.zeros(len(timeline))
    return np.asarray(np.sum(columns, axis=0)) / max(len(timeline.nodes), 1)


def _busiest(data: RunData, timeline: Timeline, mask: Mask) -> str | None:
    """The program that used the most CPU time in some intervals."""
    series = cpu_series(data)
    grown = np.diff(np.interp(timeline.edges, series.times, series.values))
    in_mask = np.append(0.0, np.cumsum(np.where(mask, grown, 0.0)))
    best, most = None, 0.0
    for program in data.programs[:_MAX_PROGRAMS]:
        if program.first is None or program.last is None or is_waiting(program.path):
            continue
        whole = np.interp((program.first, program.last), series.times, series.values)
        part = np.interp((program.first, program.last), timeline.edges, in_mask)
        used = program.cpu * (part[1] - part[0]) / max(whole[1] - whole[0], program.cpu, 1e-9)
        if used > most:
            best, most = program.shown, float(used)
    return best
