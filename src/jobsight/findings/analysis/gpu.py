"""The GPUs of a run: held and used, since when idle, and what they waited for.

How much a GPU was used is the share of its multiprocessors that were busy where that is known, else
its utilization, the time in which any kernel ran. The cause of waiting is decided for each interval
by what the host did in it, in the order of :func:`_causes`.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from jobsight.findings.analysis import activity
from jobsight.findings.analysis.arithmetic import ratio, total
from jobsight.findings.analysis.programs import cpu_curve
from jobsight.findings.data import RunData
from jobsight.findings.program_names import is_waiting
from jobsight.findings.timeline import CPU, Floats, Timeline
from jobsight.findings.vocabulary import FigureSet
from jobsight.model import SECOND, GpuUse
from jobsight.store.read.queries import StoredGpu
from jobsight.store.write.gpus import known_time, measured_time, used_time

#: Figure -> field of GpuUse and the group whose coverage applies.
_SHARES: Final = {
    "gpu.utilization": ("active_time", "activity"),
    "gpu.multiprocessors": ("multiprocessor_time", "profile"),
    "gpu.occupancy": ("occupancy_time", "profile"),
    "gpu.tensor": ("tensor_time", "profile"),
}
_NOT_MEASURED: Final = "the activity of the GPUs was not measured"
#: Faults that are errors of a GPU or of a program on it; corrected errors are neither.
_FAULTS: Final = frozenset({"ecc uncorrected", "xid"})
#: Intervals in which less than this share of the GPUs was idle are not waiting.
_WAITING: Final = 0.2
#: Programs among which the one that used the CPUs is found.
_MAX_PROGRAMS: Final = 100

Mask: TypeAlias = "npt.NDArray[np.bool_]"
SERIAL, LOADING, STORAGE = "serial host code", "data loading", "storage"
MEMORY, NETWORK, NOTHING, STARTING = "memory", "network", "nothing", "start-up"
CAUSES: Final = (STARTING, MEMORY, STORAGE, SERIAL, LOADING, NETWORK, NOTHING)


def add(data: RunData, figures: FigureSet) -> None:
    if not data.gpus:
        # The reason is that of the group.
        if data.gpu_count and data.span:
            figures.set("gpu.held", data.gpu_count * data.span)
        return
    uses = [gpu.use for gpu in data.gpus]
    held = sum(use.held_time for use in uses) / SECOND
    figures.set("gpu.held", held)
    _add_totals(uses, figures)
    _add_unused(data.gpus, figures)
    _add_idle(data, figures, held)
    _add_imbalance(data, figures)
    _add_clocks(uses, figures, held)
    _add_waiting(data, figures)


def is_unused(use: GpuUse) -> bool:
    """Whether a GPU was never active. A process may have opened it."""
    return use.used is False or used_time(use) == 0


def _add_totals(uses: list[GpuUse], figures: FigureSet) -> None:
    for figure, (field, group) in _SHARES.items():
        known = [use for use in uses if getattr(use, field) is not None]
        time = sum(known_time(use, group) for use in known)
        share = ratio(sum(getattr(use, field) for use in known), time)
        figures.set(figure, None if share is None else min(share, 1.0), _reason(uses, group))
    measured = sum(measured_time(use) for use in uses)
    used = ratio(total(used_time(use) for use in uses), measured)
    reason = _reason(uses, "activity")
    figures.set("gpu.used_share", None if used is None else min(used, 1.0), reason)
    largest = max(uses, key=lambda use: use.memory_peak or -1)
    if largest.memory_peak is None:
        for name in ("memory_peak", "memory_total", "memory_share"):
            figures.set(f"gpu.{name}", None, _reason(uses, "memory"))
    else:
        figures.set("gpu.memory_peak", largest.memory_peak)
        figures.set("gpu.memory_total", largest.memory_total)
        figures.set("gpu.memory_share", ratio(largest.memory_peak, largest.memory_total))
    energy = total(use.energy for use in uses)
    figures.set("gpu.energy", None if energy is None else energy / 1e6, _reason(uses, "energy"))
    models = Counter(use.name for use in uses if use.name)
    figures.set("gpu.model", models.most_common(1)[0][0] if models else None)


def _reason(uses: list[GpuUse], group: str) -> str:
    reasons = (use.coverage[group].reason for use in uses if group in use.coverage)
    return next((reason for reason in reasons if reason), "it was not measured")


def _add_unused(gpus: list[StoredGpu], figures: FigureSet) -> None:
    judged = [gpu.use for gpu in gpus if gpu.use.used is not None or used_time(gpu.use) is not None]
    if not judged:
        for name in ("unused", "never_opened", "unused_time"):
            figures.set(f"gpu.{name}", None, _NOT_MEASURED)
        return
    unused = [use for use in judged if is_unused(use)]
    figures.set("gpu.unused", len(unused))
    figures.set("gpu.unused_time", sum(use.held_time for use in unused) / SECOND)
    if all(use.used is None for use in judged):
        figures.set("gpu.never_opened", None, "the processes on the GPUs are not known")
    else:
        figures.set("gpu.never_opened", sum(use.used is False for use in judged))


def _add_idle(data: RunData, figures: FigureSet, held: float) -> None:
    """Time without any activity: of the time series, else held minus active time."""
    timeline = data.timeline
    active = activity.gpus_active(data)
    share = None
    if timeline is not None and active is not None:
        gpus, known = _held(data, timeline)
        share = ratio(float(np.maximum(gpus - active, 0.0)[known].sum()), float(gpus[known].sum()))
        first = activity.end_of_work(active > 0)
        since = float(timeline.edges[first])
        figures.set("gpu.idle_since", data.at(since))
        figures.set("gpu.idle_duration", data.span - since)
    else:
        for name in ("idle_since", "idle_duration"):
            figures.set(f"gpu.{name}", None, _NOT_MEASURED)
        measured = [gpu.use for gpu in data.gpus if gpu.use.active_time is not None]
        time = sum(known_time(use, "activity") for use in measured)
        used = sum(use.active_time or 0 for use in measured)
        share = None if not time else max(1.0 - used / time, 0.0)
    figures.set("gpu.idle_share", share, _NOT_MEASURED)
    figures.set("gpu.idle", None if share is None else share * held, _NOT_MEASURED)
    energy = timeline.gpus.idle_energy if timeline is not None else None
    figures.set("gpu.idle_energy", energy, "the energy of the GPUs was not sampled")


def _held(data: RunData, timeline: Timeline) -> tuple[Floats, Mask]:
    """The GPUs that were held in each interval and whose activity is known, and where it is."""
    held = timeline.get("gpu.held")
    measured = all(gpu.use.active_time is not None for gpu in data.gpus)
    gpus = timeline.gpus.all_known if held is None or not measured else held
    return gpus, gpus > 0


def _add_imbalance(data: RunData, figures: FigureSet) -> None:
    """GPU time that GPUs waited for the busiest; those that were never used wait for nothing."""
    timeline = data.timeline
    if timeline is None or not timeline.gpus.known.any():
        figures.set("gpu.imbalance_time", None, _NOT_MEASURED)
        return
    gpus = timeline.gpus
    waited = np.maximum(gpus.highest * gpus.known - gpus.total, 0.0)
    figures.set("gpu.imbalance_time", float(waited.sum()) * timeline.width)


def _add_clocks(uses: list[GpuUse], figures: FigureSet, held: float) -> None:
    throttled = [use.throttled_time for use in uses if use.throttled_time is not None]
    if not throttled:
        for name in ("throttled_share", "throttle_reason"):
            figures.set(f"gpu.{name}", None, _reason(uses, "throttling"))
    else:
        # Reasons may apply at the same time: the longest of each GPU counts.
        longest = sum(max(times.values(), default=0) for times in throttled) / SECOND
        figures.set("gpu.throttled_share", min(ratio(longest, held) or 0.0, 1.0))
        by_reason: Counter[str] = Counter()
        for times in throttled:
            by_reason.update(times)
        reason, time = by_reason.most_common(1)[0] if by_reason else ("", 0)
        figures.set("gpu.throttle_reason", reason if time else None, "clocks were never reduced")
    faults = [fault for use in uses for fault in use.faults or () if fault.kind in _FAULTS]
    if all(use.faults is None for use in uses):
        figures.set("gpu.faults", None, _reason(uses, "faults"))
        figures.set("gpu.fault_kinds", None, _reason(uses, "faults"))
        return
    figures.set("gpu.faults", sum(fault.count for fault in faults))
    kinds = {f"{fault.kind} {fault.code}" if fault.code else fault.kind for fault in faults}
    figures.set("gpu.fault_kinds", sorted(kinds)[:20])


def _add_waiting(data: RunData, figures: FigureSet) -> None:
    """Idle GPU time up to the last use, split over its causes."""
    timeline = data.timeline
    names = ("waiting", "wait_cause", "wait_share", "wait_program", "wait_causes")
    active = activity.gpus_active(data)
    cpu = None if timeline is None else timeline.get(CPU)
    if timeline is None or active is None or cpu is None:
        for name in names:
            figures.set(f"gpu.{name}", None, _NOT_MEASURED)
        return
    last = activity.end_of_work(active > 0)
    if not last or not (active[:last] > 0).any():
        for name in names:
            figures.set(f"gpu.{name}", None, "no GPU was ever used")
        return
    first = int(np.flatnonzero(active > 0)[0])
    gpus, _ = _held(data, timeline)
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
    curve = cpu_curve(data)
    grown = np.diff(np.interp(timeline.edges, curve.times, curve.values))
    in_mask = np.append(0.0, np.cumsum(np.where(mask, grown, 0.0)))
    best, most = None, 0.0
    for program in data.programs[:_MAX_PROGRAMS]:
        if program.first is None or program.last is None or is_waiting(program.path):
            continue
        whole = np.interp((program.first, program.last), curve.times, curve.values)
        part = np.interp((program.first, program.last), timeline.edges, in_mask)
        used = program.cpu * (part[1] - part[0]) / max(whole[1] - whole[0], program.cpu, 1e-9)
        if used > most:
            best, most = program.shown, float(used)
    return best
