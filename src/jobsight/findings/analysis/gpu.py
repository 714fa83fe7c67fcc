"""The GPUs of a run: held and used, and since when idle.

How much a GPU was used is the share of its multiprocessors that were busy where that is known, else
its utilization, the time in which any kernel ran.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from jobsight.findings.analysis import activity
from jobsight.findings.analysis.arithmetic import ratio, total
from jobsight.findings.data import RunData
from jobsight.findings.timeline import Floats, Timeline
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
NOT_MEASURED: Final = "the activity of the GPUs was not measured"
#: Faults that are errors of a GPU or of a program on it; corrected errors are neither.
_FAULTS: Final = frozenset({"ecc uncorrected", "xid"})

Mask: TypeAlias = "npt.NDArray[np.bool_]"


def add(data: RunData, figures: FigureSet) -> None:
    if not data.gpus:
        # The reason is that of the group.
        if data.gpu_count and data.span:
            figures.set("gpu.held", data.gpu_count * data.span)
        return
    uses = [gpu.use for gpu in data.gpus]
    held = sum(use.held_time for use in uses) / SECOND
    figures.set("gpu.held", held)
    _add_totals(uses, figures, held)
    _add_unused(data.gpus, figures)
    _add_idle(data, figures, held)
    _add_imbalance(data, figures)
    _add_clocks(uses, figures, held)


def is_unused(use: GpuUse) -> bool:
    """Whether a GPU was never active. A process may have opened it."""
    return use.used is False or used_time(use) == 0


def _add_totals(uses: list[GpuUse], figures: FigureSet, held: float) -> None:
    for figure, (field, group) in _SHARES.items():
        known = [use for use in uses if getattr(use, field) is not None]
        time = sum(known_time(use, group) for use in known)
        share = ratio(sum(getattr(use, field) for use in known), time)
        figures.set(figure, None if share is None else min(share, 1.0), _reason(uses, group))
    measured = sum(measured_time(use) for use in uses)
    used = ratio(total(used_time(use) for use in uses), measured)
    reason = _reason(uses, "activity")
    share = None if used is None else min(used, 1.0)
    figures.set("gpu.used_share", share, reason)
    figures.set("gpu.used", None if share is None else held * share, reason)
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
            figures.set(f"gpu.{name}", None, NOT_MEASURED)
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
        gpus, known = held_gpus(data, timeline)
        share = ratio(float(np.maximum(gpus - active, 0.0)[known].sum()), float(gpus[known].sum()))
        first = activity.end_of_work(active > 0)
        since = float(timeline.edges[first])
        figures.set("gpu.idle_since", data.at(since))
        figures.set("gpu.idle_duration", data.span - since)
    else:
        for name in ("idle_since", "idle_duration"):
            figures.set(f"gpu.{name}", None, NOT_MEASURED)
        measured = [gpu.use for gpu in data.gpus if gpu.use.active_time is not None]
        time = sum(known_time(use, "activity") for use in measured)
        used = sum(use.active_time or 0 for use in measured)
        share = None if not time else max(1.0 - used / time, 0.0)
    figures.set("gpu.idle_share", share, NOT_MEASURED)
    figures.set("gpu.idle", None if share is None else share * held, NOT_MEASURED)
    energy = timeline.gpus.idle_energy if timeline is not None else None
    figures.set("gpu.idle_energy", energy, "the energy of the GPUs was not sampled")


def held_gpus(data: RunData, timeline: Timeline) -> tuple[Floats, Mask]:
    """The GPUs that were held in each interval and whose activity is known, and where it is."""
    held = timeline.get("gpu.held")
    measured = all(gpu.use.active_time is not None for gpu in data.gpus)
    gpus = timeline.gpus.all_known if held is None or not measured else held
    return gpus, gpus > 0


def _add_imbalance(data: RunData, figures: FigureSet) -> None:
    """GPU time that GPUs waited for the busiest; those that were never used wait for nothing."""
    timeline = data.timeline
    if timeline is None or not timeline.gpus.known.any():
        figures.set("gpu.imbalance_time", None, NOT_MEASURED)
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
