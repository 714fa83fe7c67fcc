"""The three bars of a report: CPU, memory and time against what was asked, with a verdict."""

from __future__ import annotations

from typing import NamedTuple

from jobsight.reports.report import JobReport
from jobsight.reports.units import format_bytes, format_cores, format_count, format_duration

_CPU_LOW = 0.5
_MEMORY_NEAR = 0.9
_MEMORY_FULL = 0.98


class Gauge(NamedTuple):
    """One bar; without a share there was nothing asked to hold the use against."""

    name: str
    share: float | None
    text: str
    #: Says in a word what the colour says.
    verdict: str
    style: str


def gauges(report: JobReport) -> list[Gauge]:
    """The bars of a report; time only where there is a limit."""
    bars = [_cpu(report), _memory(report)]
    if report.time.asked:
        elapsed, asked = format_duration(report.time.elapsed), format_duration(report.time.asked)
        ended = report.state.upper() == "TIMEOUT"
        bars.append(
            Gauge(
                "Time",
                report.time.share,
                f"{elapsed} of {asked}",
                "limit reached" if ended else "",
                "red" if ended else "cyan",
            )
        )
    return bars


def _cpu(report: JobReport) -> Gauge:
    cpu = report.cpu
    if cpu.cores_mean is None:
        return Gauge("CPU", None, "not known", "", "yellow")
    busy = format_cores(cpu.cores_mean)
    if not cpu.asked or cpu.share is None:
        return Gauge("CPU", None, f"{busy} CPUs busy on average; none asked for", "", "green")
    noun = "CPU" if cpu.asked == 1 else "CPUs"
    text = f"{busy} of {format_count(cpu.asked)} {noun} busy"
    if cpu.share > 1.05:
        return Gauge("CPU", cpu.share, text, "more than asked", "yellow")
    if cpu.share < _CPU_LOW:
        return Gauge("CPU", cpu.share, text, "low", "yellow")
    return Gauge("CPU", cpu.share, text, "", "green")


def _memory(report: JobReport) -> Gauge:
    memory = report.memory
    used = memory.used_peak if memory.used_peak is not None else memory.kernel_peak
    if used is None:
        return Gauge("Memory", None, "not known", "", "yellow")
    verdict, style = "", "green"
    if memory.share is not None and memory.share >= _MEMORY_NEAR:
        verdict, style = "near the limit", "red" if memory.share >= _MEMORY_FULL else "yellow"
    if memory.oom_kills:
        verdict, style = "out of memory", "red"
    if not memory.asked:
        return Gauge("Memory", None, f"{format_bytes(used)} at most; no limit", verdict, style)
    text = f"{format_bytes(used)} of {format_bytes(memory.asked)}"
    return Gauge("Memory", memory.share, text, verdict, style)
