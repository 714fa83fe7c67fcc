"""petricore's answers about a finished job: its JSON and its mail.

Sites have scripts that read them. The thresholds are petricore's; where its code did not do what
its text says, the text counts. What was not measured is null in the JSON and "not measured" in the
mail, and no reason for a warning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from jobsight.metrics import find_metric
from jobsight.model import SECOND, RunReference
from jobsight.reports.document import shown
from jobsight.reports.report import JobReport
from jobsight.reports.series import reply
from jobsight.util.units import format_bytes, format_count, format_duration, format_share

if TYPE_CHECKING:
    from jobsight.store.read.queries import MetricSummary
    from jobsight.store.store import Store

_MEBIBYTE: Final = 2**20
#: petricore's thresholds.
_CPU_SHARE: Final = 0.8
_EVENNESS: Final = 0.75
_MEMORY_SHARE: Final = 0.9
_CORE_SHARE: Final = 0.9
_THREADS_PER_CPU: Final = 2
_SMALL_FILE: Final = 5 * _MEBIBYTE
_MANY_FILES: Final = 1000
#: Bytes read and written from which scratch is worth its use.
_SCRATCH_BYTES: Final = 2**30
#: Points in which the highest CPU use is looked for.
_POINTS: Final = 400
#: Cores and GPUs in a reply.
_MAX_ROWS: Final = 10_000

_GPU_METRICS: Final = {
    "utilization_gpu": ("utilization", 1),
    "utilization_memory": ("memory_utilization", 1),
    "temperature_gpu": ("temperature", 1),
    "memory_used": ("memory_used", _MEBIBYTE),
}


class Core(NamedTuple):
    """The CPU time on one core, in seconds."""

    name: str
    seconds: float


class Usage(msgspec.Struct, kw_only=True):
    """The figures of a job that petricore's answers are made of."""

    report: JobReport
    tres: dict[str, int]
    #: Whether files on scratch were open, the most open files and threads; None: not measured.
    uses_scratch: bool | None
    opened_files: int | None
    threads: int | None
    #: Percent of one core, on average and at most.
    mean_percent: float | None
    highest_percent: float | None
    cores: list[Core]
    gpus: dict[str, list[float | None]]

    @property
    def cpus(self) -> int | None:
        return self.report.cpu.requested_cpus

    @property
    def storage_bytes(self) -> int | None:
        read, written = self.report.io.storage_read_bytes, self.report.io.storage_written_bytes
        return None if read is None and written is None else (read or 0) + (written or 0)


def read_usage(store: Store, report: JobReport) -> Usage:
    """The figures of a finished run."""
    stored = store.find(RunReference.parse(report.run))
    summaries = store.summaries(stored.id)
    scratch = _sum_of_maxima(summaries, "files.scratch")
    mean = report.cpu.mean_cores
    return Usage(
        report=report,
        tres=dict(stored.info.tres or {}),
        uses_scratch=None if scratch is None else scratch > 0,
        opened_files=_sum_of_maxima(summaries, "files.open"),
        threads=_sum_of_maxima(summaries, "tasks.threads"),
        mean_percent=None if mean is None else 100 * mean,
        highest_percent=_highest_percent(store, stored.id, report.run),
        cores=_cores(summaries),
        gpus=_gpus(summaries, report),
    )


def _sum_of_maxima(summaries: Iterable[MetricSummary], metric: str) -> int | None:
    maxima = [
        row.maximum for row in summaries if row.metric == metric and math.isfinite(row.maximum)
    ]
    return round(sum(maxima)) if maxima else None


def _highest_percent(store: Store, run_id: int, run: str) -> float | None:
    """The highest CPU use of all nodes together. A failed reading and a gap are NaN."""
    series = reply(run, store.series(run_id, metrics=["cpu.time"]), [], _POINTS)
    uses: dict[float, float] = {}
    for node in series.nodes:
        part = node.metrics.get("cpu.time")
        for moment, value in zip(node.times_seconds, part.mean if part else (), strict=False):
            if value is not None and math.isfinite(value):
                uses[moment] = uses.get(moment, 0.0) + 100 * value
    return max(uses.values(), default=None)


def _cores(summaries: Iterable[MetricSummary]) -> list[Core]:
    cores = []
    for row in summaries:
        metric = find_metric(row.metric)
        if metric is None or metric.name != "cores.*.time":
            continue
        if math.isfinite(row.last):
            number = row.metric.split(".")[1]
            cores.append(Core(f"{shown(row.node)}_core_{shown(number)}", row.last / SECOND))
    return cores[:_MAX_ROWS]


def _gpus(summaries: Iterable[MetricSummary], report: JobReport) -> dict[str, list[float | None]]:
    """Of each GPU, in the order of the report: maximum, mean and minimum of each figure."""
    known = {(row.node, row.metric): row for row in summaries}
    figures: dict[str, list[float | None]] = {}

    def add(name: str, highest: float | None, mean: float | None, lowest: float | None) -> None:
        for prefix, value in (("max", highest), ("avg", mean), ("min", lowest)):
            figures.setdefault(f"{prefix}_{name}", []).append(
                None if value is None else round(value, 3)
            )

    for gpu in report.gpus[:_MAX_ROWS]:
        for name, (figure, divisor) in _GPU_METRICS.items():
            row = known.get((gpu.node, f"gpu.{gpu.gpu}.{figure}"))
            if row is None:
                add(name, None, None, None)
            else:
                add(name, row.maximum / divisor, row.mean / divisor, row.minimum / divisor)
        total = None
        if gpu.memory_total_bytes is not None:
            total = gpu.memory_total_bytes / _MEBIBYTE
        add("memory_total", total, total, total)
        used = known.get((gpu.node, f"gpu.{gpu.gpu}.memory_used"))
        if used is None or total is None:
            add("memory_free", None, None, None)
        else:
            free = (total - part / _MEBIBYTE for part in (used.minimum, used.mean, used.maximum))
            add("memory_free", *free)
    return figures


def usage_json(usage: Usage) -> dict[str, Any]:
    """petricore's JSON of a job."""
    report, cpus = usage.report, usage.cpus
    total, requested = report.cpu.time, report.memory.requested_bytes
    total_seconds = None if total is None else round(total / SECOND, 3)
    scratch = None if usage.uses_scratch is None else str(usage.uses_scratch)
    core_total = sum(core.seconds for core in usage.cores)
    return {
        "jobid": report.job_id,
        "sponsor": report.account,
        "username": report.user,
        "runtime": _slurm_duration(report.time.elapsed),
        "uses_scratch": scratch,
        "alloc_tres": {
            "billing": usage.tres.get("billing"),
            "alloc_cpu": cpus,
            "alloc_mem": None if requested is None else f"{round(requested / _MEBIBYTE)}M",
            "alloc_nodes": usage.tres.get("node", len(report.nodes) or None),
        },
        "threads": {} if usage.threads is None else {"all programs": usage.threads},
        "cpu": {
            "available": {"amount": cpus, "unit": "cores"},
            "used": {"amount": _used_cores(usage), "unit": "cores"},
            "time_core": [
                {
                    "core": core.name,
                    "time": round(core.seconds, 3),
                    "unit": "s",
                    "percent_of_total": _rounded(_ratio(100 * core.seconds, core_total)),
                }
                for core in usage.cores
            ],
            "time_total": {"time": total_seconds, "unit": "s"},
            "avg_usage_job": {
                "usage": _rounded(usage.mean_percent),
                "lowest_expected_usage": None if cpus is None else 80 * cpus,
                "unit": "%",
            },
            "max_usage_job": {"usage": _rounded(usage.highest_percent), "unit": "%"},
        },
        "ram": {
            "used": {
                "amount": _mebibytes(report.memory.used_peak_bytes),
                "unit": "MB",
                "usage": _rounded(report.memory.share),
            },
            "available": {"amount": _mebibytes(requested), "unit": "MB"},
        },
        "gpu": {"alloc_gpu": _gpu_ids(report), "metrics": usage.gpus},
        "io": {
            "opened_files": usage.opened_files,
            "read": {
                "amount": _mebibytes(report.io.storage_read_bytes),
                "unit": "MB",
                "count": report.io.read_calls,
            },
            "write": {
                "amount": _mebibytes(report.io.storage_written_bytes),
                "unit": "MB",
                "count": report.io.write_calls,
            },
        },
    }


def _slurm_duration(duration: int | None) -> str | None:
    """As sacct prints it: 00:10:00 or 1-02:03:04."""
    if duration is None:
        return None
    minutes, seconds = divmod(duration // SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:{seconds:02}"


def _used_cores(usage: Usage) -> int | None:
    """Cores with at least 80 % of an equal part of the CPU time."""
    if not usage.cores or not usage.cpus:
        return None
    part = sum(core.seconds for core in usage.cores) / usage.cpus
    return sum(core.seconds >= _CPU_SHARE * part and core.seconds > 0 for core in usage.cores)


def _gpu_ids(report: JobReport) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {}
    for gpu in report.gpus[:_MAX_ROWS]:
        ids.setdefault(gpu.node, []).append(gpu.gpu)
    return ids


def _mebibytes(size: float | None) -> float | None:
    return None if size is None else round(size / _MEBIBYTE, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _ratio(value: float | None, of: float | None) -> float | None:
    return None if value is None or not of else value / of


class Check(NamedTuple):
    """One of petricore's checks: None if what it needs was not measured."""

    warns: bool | None
    good: str
    bad: str
    #: The finding whose page explains it.
    help: str


def checks(usage: Usage) -> list[Check]:
    """petricore's seven checks."""
    report, cpus = usage.report, usage.cpus
    files, size = usage.opened_files, usage.storage_bytes
    per_cpu = _ratio(usage.mean_percent, cpus and 100 * cpus)
    evenness = _ratio(usage.mean_percent, usage.highest_percent)
    memory = report.memory.share
    busy = [core.seconds for core in usage.cores]
    equal = sum(busy) / len(busy) if busy else 0.0
    most = None if cpus is None else _THREADS_PER_CPU * cpus
    return [
        Check(
            None
            if usage.uses_scratch is None or size is None
            else not usage.uses_scratch and size >= _SCRATCH_BYTES,
            "Scratch was used, or little was read and written.",
            f"{format_bytes(size)} were read and written, and scratch was never used.",
            "scratch-not-used",
        ),
        Check(
            None
            if files is None or size is None
            else files >= _MANY_FILES and size / files < _SMALL_FILE,
            "The files are few or large.",
            f"Many small files: {format_count(files)} were open, with "
            f"{format_bytes(_ratio(size, files))} read and written for each.",
            "small-files",
        ),
        Check(
            None if per_cpu is None else per_cpu < _CPU_SHARE,
            f"The CPUs were used: {format_share(per_cpu)}.",
            f"The CPUs were used to {format_share(per_cpu)}; at least 80 % is expected.",
            "cpu-cores-idle",
        ),
        Check(
            None if evenness is None else evenness < _EVENNESS,
            "The use of the CPUs was even over time.",
            f"The use of the CPUs was uneven over time: its mean is {format_share(evenness)} of "
            "its maximum.",
            "cpu-unsteady",
        ),
        Check(
            None if memory is None else memory < _MEMORY_SHARE,
            f"The memory was used: {format_share(memory)}.",
            f"Of the requested memory {format_share(memory)} was used; request less.",
            "memory-request-unused",
        ),
        Check(
            None if not busy else min(busy) < _CORE_SHARE * equal,
            "All cores did about the same work.",
            "The work was not divided evenly over the cores: one had "
            f"{format_share(_ratio(min(busy, default=0.0), equal))} of an equal part.",
            "cpu-core-imbalance",
        ),
        Check(
            None if usage.threads is None or most is None else usage.threads > most,
            "The number of threads suits the CPUs.",
            f"{format_count(usage.threads)} threads; at most {format_count(most)} are expected, "
            "two for each CPU.",
            "cpu-oversubscribed",
        ),
    ]


_MEASURED: Final = ("Scratch", "Small files", "CPU use", "CPU use over time", "Memory",
                    "Cores", "Threads")  # fmt: skip


def mail_text(usage: Usage, server: str) -> str:
    """petricore's mail; its last line is ``WARNING=true`` or ``WARNING=false``.

    ``server`` is the address of this server, for links. Every text that a user chose is on the one
    line of its fact.
    """
    report = usage.report
    found = dict(zip(_MEASURED, checks(usage), strict=True))
    tres = ",".join(f"{name}={count}" for name, count in usage.tres.items())
    general = [
        ("Sponsor", shown(report.account)),
        ("User", shown(report.user)),
        ("Job", f"{report.display_id} {shown(report.name)}"),
        ("CPUs", format_count(usage.cpus)),
        ("TRES", shown(tres)),
        ("Nodes", shown(", ".join(report.nodes[:64]))),
        ("Elapsed", format_duration(report.time.elapsed)),
    ]
    sections = {
        "General": [f"{name}: {text}" for name, text in general],
        "I/O": [
            f"Read: {format_bytes(report.io.storage_read_bytes)}",
            f"Written: {format_bytes(report.io.storage_written_bytes)}",
            *_lines(found, ("Scratch", "Small files"), server),
        ],
        "Usage": _lines(found, ("CPU use", "CPU use over time", "Memory", "Cores"), server),
        "Threads": _lines(found, ("Threads",), server),
    }
    text = "\n\n".join("\n".join([title, *lines]) for title, lines in sections.items())
    warning = any(check.warns for check in found.values())
    link = f"{server}/pdf/{report.display_id}"
    return f"{text}\n\nPlots: {link}\n\nWARNING={'true' if warning else 'false'}\n"


def _lines(found: Mapping[str, Check], names: Iterable[str], server: str) -> list[str]:
    lines = []
    for name in names:
        check = found[name]
        if check.warns is None:
            lines.append(f"{name}: not measured.")
        elif check.warns:
            lines.append(f"Warning: {check.bad} See {server}/findings/{check.help}")
        else:
            lines.append(f"Good: {check.good} See {server}/findings/{check.help}")
    return lines
