"""The GPUs of a run in its report: a row for each, their totals, and the sentences about them.

How much a GPU was used is the share of its multiprocessors that were busy where that is known, else
its utilization, and each share says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from jobsight.model import GPU_FIGURES, SECOND, Coverage, GpuUse
from jobsight.reports.report import (
    GpuFaultRow,
    GpuMeasure,
    GpuRow,
    GpuTotals,
    RunCoverage,
    quality_text,
)
from jobsight.util.units import format_count, format_duration, format_share

if TYPE_CHECKING:
    from jobsight.store.read.queries import StoredGpu
    from jobsight.store.write.gpus import GpuSums

#: Below this share a GPU was hardly used, and above the next one well.
LOW: Final = 0.1
#: Below this one the job computed next to nothing on its GPUs, whoever opened them.
HARDLY: Final = 0.02
HIGH: Final = 0.5
#: More GPUs than this are shown in groups, and as a strip.
MANY: Final = 8

WHY_UTILIZATION_IS_NOT_USE: Final = (
    "Used is the mean share of the multiprocessors that were busy. Utilization is the share of the "
    "time in which any kernel ran, however small: a GPU can show 100 % and be nearly idle."
)
ONLY_UTILIZATION: Final = (
    "Used is the utilization here, the share of the time in which any kernel ran, however small: "
    "how many of the multiprocessors were busy is not known, and can be far less."
)

#: Group of figures -> its name in sentences.
FIGURE_NAMES: Final = {
    "activity": "Utilization",
    "profile": "Multiprocessors, tensor cores and memory bandwidth",
    "memory": "GPU memory",
    "energy": "GPU energy",
    "pcie": "PCIe traffic",
    "nvlink": "NVLink traffic",
    "throttling": "Reduced clocks",
    "faults": "GPU errors",
}
#: Field of GpuUse -> that of GpuRow, and the group whose coverage applies.
_SHARES: Final = {
    "active_time": ("utilization_share", "activity"),
    "multiprocessor_time": ("multiprocessor_share", "profile"),
    "occupancy_time": ("occupancy_share", "profile"),
    "tensor_time": ("tensor_share", "profile"),
    "fp64_time": ("fp64_share", "profile"),
    "fp32_time": ("fp32_share", "profile"),
    "fp16_time": ("fp16_share", "profile"),
    "bandwidth_time": ("bandwidth_share", "profile"),
}
_TRAFFIC: Final = (
    *("pcie_received_bytes", "pcie_sent_bytes", "nvlink_received_bytes", "nvlink_sent_bytes"),
)


def gpu_row(node: str, use: GpuUse) -> GpuRow:
    """The row of one GPU."""
    from jobsight.store.write.gpus import known_time, used_time

    shares: dict[str, Any] = {
        name: _share(getattr(use, figure), known_time(use, group))
        for figure, (name, group) in _SHARES.items()
    }
    measured = "activity" if use.multiprocessor_time is None else "profile"
    measure: GpuMeasure | None = None
    if used_time(use) is not None:
        measure = "utilization" if use.multiprocessor_time is None else "multiprocessors"
    mean = _share(use.memory_time, known_time(use, "memory") / SECOND, most=None)
    return GpuRow(
        node=node,
        gpu=use.key,
        model=use.name,
        uuid=use.uuid,
        parent=use.parent,
        held=use.held_time,
        used=use.used,
        shared=use.shared,
        used_share=_share(used_time(use), known_time(use, measured)),
        measure=measure,
        **shares,
        memory_mean_bytes=None if mean is None else round(mean),
        memory_peak_bytes=use.memory_peak,
        memory_total_bytes=use.memory_total,
        energy_joules=None if use.energy is None else use.energy / 1e6,
        **{name: getattr(use, name) for name in _TRAFFIC},
        throttled_seconds=(
            None
            if use.throttled_time is None
            else {reason: time / SECOND for reason, time in use.throttled_time.items()}
        ),
        faults=(
            None
            if use.faults is None
            else [
                GpuFaultRow(kind=fault.kind, code=fault.code, count=fault.count, last=fault.last)
                for fault in use.faults
            ]
        ),
        coverage={group: _coverage(use, group) for group in GPU_FIGURES},
    )


def _share(figure: int | None, time: float, most: float | None = 1.0) -> float | None:
    if figure is None or not time:
        return None
    # Readings at both ends of an interval may exceed it by some milliseconds.
    return figure / time if most is None else min(figure / time, most)


def _coverage(use: GpuUse, group: str) -> RunCoverage:
    own = use.coverage.get(group)
    if own is None:
        known = any(getattr(use, name) is not None for name in GPU_FIGURES[group])
        own = Coverage(quality="exact" if known else "missing")
        if use.shared and known and group in ("activity", "profile", "energy"):
            own = Coverage(quality="estimate", reason="other jobs used the GPU at the same time")
    return RunCoverage(**msgspec.structs.asdict(own))


def gpu_rows(stored: Iterable[StoredGpu]) -> list[GpuRow]:
    return [gpu_row(gpu.node, gpu.use) for gpu in stored]


def measure_of(measured: int | None, profiled: int | None) -> GpuMeasure | None:
    """The measure of a sum, of which this time is measured, and this one by multiprocessors."""
    if not measured:
        return None
    if not profiled:
        return "utilization"
    return "multiprocessors" if profiled >= measured else "mixed"


def gpu_totals(
    sums: GpuSums, rows: Sequence[GpuRow], requested: int | None, coverage: Coverage | None
) -> GpuTotals | None:
    """The totals of the GPUs of a run; None for a run without GPUs."""
    if not rows and not requested:
        return None
    peak = max(
        (row for row in rows if row.memory_peak_bytes is not None),
        key=lambda row: row.memory_peak_bytes or 0,
        default=None,
    )
    means = [(row.memory_mean_bytes, row.held) for row in rows if row.memory_mean_bytes is not None]
    weight = sum(held for _, held in means)
    active = [
        (row.utilization_share, row.held) for row in rows if row.utilization_share is not None
    ]
    held_active = sum(held for _, held in active)
    totals = GpuTotals(
        requested_gpus=requested,
        count=len(rows),
        used_count=sum(row.used is True for row in rows),
        unused_count=sum(row.used is False for row in rows),
        shared_count=sum(row.shared for row in rows),
        held=sums.gpu_held_time,
        measured=sums.gpu_measured_time,
        used=sums.gpu_used_time,
        used_share=_share(sums.gpu_used_time, sums.gpu_measured_time or 0),
        measure=measure_of(sums.gpu_measured_time, sums.gpu_profiled_time),
        utilization_share=(
            sum(share * held for share, held in active) / held_active if held_active else None
        ),
        memory_mean_bytes=(
            round(sum(mean * held for mean, held in means) / weight) if weight else None
        ),
        memory_peak_bytes=None if peak is None else peak.memory_peak_bytes,
        memory_total_bytes=None if peak is None else peak.memory_total_bytes,
        energy_joules=None if sums.gpu_energy is None else sums.gpu_energy / 1e6,
        coverage=None if coverage is None else RunCoverage(**msgspec.structs.asdict(coverage)),
    )
    totals.text = _text(totals)
    totals.notes = list(_notes(totals, rows))
    return totals


def _text(totals: GpuTotals) -> str:
    """What was held and used, as the head of the section."""
    if not totals.count:
        return f"{_gpus(totals.requested_gpus or 0)} requested; no node reported their use"
    held = f"{_gpus(totals.count)} held"
    if totals.unused_count == totals.count:
        return f"{held} and never used" if totals.count == 1 else f"{held}, none of them ever used"
    if totals.unused_count:
        return f"{held}; held and never used: {totals.unused_count} of {totals.count}"
    if totals.used_share is not None and totals.used_share < HARDLY:
        return f"{held}, hardly used"
    if totals.used_count < totals.count:
        return held
    return f"{held} and used" if totals.count == 1 else f"{held}, all of them used"


def _gpus(count: int) -> str:
    return f"{format_count(count)} GPU{'' if count == 1 else 's'}"


def _notes(totals: GpuTotals, rows: Sequence[GpuRow]) -> Iterable[str]:
    if totals.measure == "multiprocessors":
        yield WHY_UTILIZATION_IS_NOT_USE
    elif totals.measure == "utilization":
        yield ONLY_UTILIZATION
    elif totals.measure == "mixed":
        yield f"{WHY_UTILIZATION_IS_NOT_USE} Where only the utilization is known, it stands in."
    if totals.requested_gpus is not None and 0 < totals.count < totals.requested_gpus:
        yield (
            f"{_gpus(totals.requested_gpus)} were requested, and the nodes reported "
            f"{totals.count} of them."
        )
    if totals.shared_count:
        are = "is" if totals.shared_count == 1 else "are"
        yield (
            f"{_gpus(totals.shared_count)} {are} shared: other jobs used the same GPU, and the "
            "figures of this job are estimates."
        )
    yield from _coverage_notes(rows)


def _coverage_notes(rows: Sequence[GpuRow]) -> Iterable[str]:
    """A sentence for each reason why figures are not exact, with the groups that it concerns."""
    concerned: dict[tuple[str, str, str], int] = {}
    for group in FIGURE_NAMES:
        for row in rows:
            own = row.coverage[group]
            if own.quality != "exact" and own.reason and not row.shared:
                key = (own.quality, own.reason, group)
                concerned[key] = concerned.get(key, 0) + 1
    names: dict[tuple[str, str, int], list[str]] = {}
    for (quality, reason, group), count in concerned.items():
        names.setdefault((quality, reason, count), []).append(FIGURE_NAMES[group])
    for (quality, reason, count), titles in names.items():
        # Names of groups begin with a capital letter only at the beginning of the sentence.
        first, *others = titles
        named = ", ".join([first, *(_in_sentence(title) for title in others)])
        where = "" if count == len(rows) else f" of {_gpus(count)}"
        yield f"{named}{where}: {quality_text(quality)}, {reason.rstrip('.')}."


def _in_sentence(title: str) -> str:
    """A name in the middle of a sentence; abbreviations keep their capitals."""
    return title if title[1:2].isupper() or title[2:3].isupper() else title[0].lower() + title[1:]


class GpuGroup(NamedTuple):
    """GPUs that did the same, if there are too many to be shown one by one."""

    title: str
    rows: list[GpuRow]

    @property
    def used_share(self) -> float | None:
        known = [row.used_share for row in self.rows if row.used_share is not None]
        return sum(known) / len(known) if known else None

    @property
    def memory_peak_bytes(self) -> int | None:
        known = [row.memory_peak_bytes for row in self.rows if row.memory_peak_bytes is not None]
        return max(known, default=None)

    @property
    def energy_joules(self) -> float | None:
        known = [row.energy_joules for row in self.rows if row.energy_joules is not None]
        return sum(known) if known else None


def gpu_groups(rows: Sequence[GpuRow]) -> list[GpuGroup]:
    """The GPUs by what they did, those that were never used first."""
    titles = (
        "never used",
        f"used below {format_share(LOW)}",
        f"used {format_share(LOW)} to {format_share(HIGH)}",
        f"used {format_share(HIGH)} and more",
        "not measured",
    )
    groups = [GpuGroup(title, []) for title in titles]
    for row in rows:
        groups[_group_of(row)].rows.append(row)
    return [group for group in groups if group.rows]


def _group_of(row: GpuRow) -> int:
    if row.used is False:
        return 0
    if row.used_share is None:
        return 4
    return 1 if row.used_share < LOW else 2 if row.used_share < HIGH else 3


def conspicuous_first(rows: Sequence[GpuRow]) -> list[GpuRow]:
    """The GPUs in their order, but first those that were never used, then those that were little
    used, then those with errors or reduced clocks: of many, the others are below the fold."""
    return sorted(rows, key=lambda row: (_group_of(row), not gpu_remark(row)))


def gpu_tone(row: GpuRow) -> str:
    """The colour of a GPU: how well it was used."""
    return ("bad", "warn", "busy", "good", "idle")[_group_of(row)]


def gpu_remark(row: GpuRow) -> str:
    """What else is to be said of a GPU: errors and reduced clocks."""
    faults = [
        f"{format_count(fault.count)} {fault.kind}"
        + ("" if fault.code is None else f" {fault.code}")
        for fault in row.faults or ()
    ]
    clocks = [
        f"reduced clocks for {format_duration(round(time * 1e9))} ({reason})"
        for reason, time in (row.throttled_seconds or {}).items()
        if time > 0
    ]
    remarks = [*faults, *clocks]
    return ", ".join(remarks)


def gpu_cell(
    count: int | None, unused: int | None, share: float | None, requested: int | None
) -> str:
    """The GPUs of a run in a list: ``1/4 GPU 23 %``."""
    if not count:
        return f"{format_count(requested)} GPU" if requested else ""
    used = f"{count - (unused or 0)}/{count} GPU"
    return used if share is None else f"{used} {format_share(share)}"
