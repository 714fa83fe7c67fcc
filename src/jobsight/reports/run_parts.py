"""What a report of a run says beyond its own figures: what it held and what that costs, its
software, what would have fitted, and what improved since a finding of an earlier run was shown.

The last two compare the runs of the same work. They are read of runs that were judged: finding the
work of another run would read all of its time series.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from jobsight.errors import StoreError
from jobsight.findings.costs import cost_of, price, weight
from jobsight.findings.finding import Cost
from jobsight.findings.reported import NO_PRICES, FittedRequest, WorkEffect
from jobsight.model import SECOND, JobInfo
from jobsight.reports.report import GpuTotals, JobReport, SoftwareRow

if TYPE_CHECKING:
    from jobsight.config.settings import PriceSettings
    from jobsight.store.findings.works import StoredFigures
    from jobsight.store.read.queries import SoftwareUse, StoredRun
    from jobsight.store.store import Store

#: Names of software in a report, and those that are read: some are ignored, and each local version
#: is one.
MAX_SOFTWARE: Final = 10
_READ_SOFTWARE: Final = 500
#: Improvements that a report lists.
MAX_IMPROVEMENTS: Final = 5
_ENERGY: Final = frozenset({"energy.total"})


class Advice(NamedTuple):
    """What the runs of the same work tell."""

    fitted: list[FittedRequest]
    improvements: list[WorkEffect]


def complete_report(
    report: JobReport,
    store: Store,
    stored: StoredRun,
    now: int,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
) -> None:
    """Add the parts that a report of one run has and that no figure of it depends on."""
    known = store.figures_of(stored.id)
    report.samples = store.count_samples(stored.id) or None
    report.cost = held_cost(report, stored.info.gpus, _energy(known))
    report.prices = price(report.cost, prices)
    report.software = software_rows(store, stored.id, stored.info, report.cpu.time)
    if not report.running:
        report.fitted, report.improvements = advice_of(store, stored, known, now, prices)


def held_cost(report: JobReport, requested_gpus: int | None, energy: float | None = None) -> Cost:
    """What a run held over its elapsed time. The energy, in joules, is that of the nodes where it
    was measured, else that of its GPUs."""
    elapsed = report.time.elapsed
    if elapsed is None:
        return Cost()
    seconds = elapsed / SECOND
    cpus, memory = report.cpu.requested_cpus, report.memory.requested_bytes
    if energy is None and report.gpu is not None:
        energy = report.gpu.energy_joules
    return cost_of(
        core_time=None if cpus is None else cpus * seconds,
        gpu_time=_gpu_seconds(report.gpu, requested_gpus, seconds),
        memory_time=None if memory is None else memory * seconds,
        energy=energy,
    )


def _gpu_seconds(gpus: GpuTotals | None, requested: int | None, seconds: float) -> float | None:
    if gpus is not None and gpus.held is not None:
        return gpus.held / SECOND
    return requested * seconds if requested else None


def _energy(known: StoredFigures | None) -> float | None:
    """The energy that the nodes measured, in joules."""
    from jobsight.findings.packed import decode_values

    if known is None:
        return None
    try:
        value = decode_values(known.data, _ENERGY)[0].get("energy.total")
    except StoreError:
        return None
    return value if isinstance(value, float) else None


def software_rows(
    store: Store, run_id: int, info: JobInfo, cpu_time: int | None
) -> list[SoftwareRow]:
    """What the programs of a run used by software, with its share of the CPU time."""
    used = store.software_use_of(run_id, _READ_SOFTWARE)
    if not any(row.name for row in used if not row.ignored):
        return []
    whole = max(cpu_time or 0, sum(row.cpu_time for row in used))
    merged: dict[tuple[str | None, str | None], SoftwareRow] = {}
    for each in used:
        if each.ignored:
            continue
        row = software_row(each, info, whole)
        known = merged.setdefault((row.software, row.version), row)
        # Local versions, such as a module and a path, are one software.
        if known is not row:
            known.executions += row.executions
            known.cpu_time += row.cpu_time
            known.gpu_time += row.gpu_time
            known.cpu_share = known.cpu_time / whole if whole else None
    return sorted(merged.values(), key=lambda row: -row.cpu_time)[:MAX_SOFTWARE]


def software_row(use: SoftwareUse, info: JobInfo, cpu_time: int) -> SoftwareRow:
    """What one software used in a run, with its share of a CPU time."""
    return SoftwareRow(
        software=name_of_run(use.name, info),
        version=name_of_run(use.version, info),
        user_provided=use.user_provided,
        executions=use.executions,
        cpu_time=use.cpu_time,
        cpu_share=use.cpu_time / cpu_time if cpu_time else None,
        gpu_time=use.gpu_time,
    )


def name_of_run(text: str | None, info: JobInfo) -> str | None:
    """A part of a name with the user and project of the run; None if it is empty."""
    if text is None or "%(" not in text:
        return text or None
    from jobsight.software.rule_file import fill_run

    return fill_run(text, info.user, info.account)


def advice_of(
    store: Store,
    stored: StoredRun,
    known: StoredFigures | None,
    now: int,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
) -> Advice:
    """What would have fitted the work of a run, and what improved; of a run that was judged."""
    if known is None or known.work_id is None:
        return Advice([], [])
    # Imported here: a run without a work needs none of it.
    from jobsight.findings.effect import effects_up_to_run
    from jobsight.reports.subject_findings import fitted_requests

    effects = effects_up_to_run(store, known.work_id, stored.id, stored.start, prices)
    better = [each for each in effects if each.is_better]
    better.sort(key=lambda each: -weight(each.saved))
    return Advice(fitted_requests(store, stored.id, now), better[:MAX_IMPROVEMENTS])
