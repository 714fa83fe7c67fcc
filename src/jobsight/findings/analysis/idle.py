"""What held the job after the work had ended: since when, at which cost, and which programs."""

from __future__ import annotations

from jobsight.findings.analysis import activity
from jobsight.findings.analysis.arithmetic import NO_CORES
from jobsight.findings.data import LATE, Program, RunData
from jobsight.findings.program_names import is_waiting
from jobsight.findings.timeline import CPU
from jobsight.findings.vocabulary import FigureSet

#: Programs that are named.
_MAX_HOLDERS = 10
_NAMES = ("idle.since", "idle.duration", "idle.share", "idle.core_time", "idle.gpu_time")


def add(data: RunData, figures: FigureSet) -> None:
    busy = activity.working(data)
    timeline = data.timeline
    cpu = None if timeline is None else timeline.get(CPU)
    if busy is None or timeline is None or cpu is None:
        reason = data.timeline_reason if timeline is None else "the CPU time was not sampled"
        if data.unmeasured > LATE:
            reason = activity.NOT_TO_THE_END
        for name in (*_NAMES, "idle.holder", "idle.holders"):
            figures.set(name, None, reason)
        return
    first = activity.end_of_work(busy)
    since = float(timeline.edges[first])
    duration = data.span - since
    figures.set("idle.since", data.at(since))
    figures.set("idle.duration", duration)
    figures.set("idle.share", duration / data.span)
    used = float(cpu[first:].sum()) * timeline.width
    held = None if data.cores is None else max(data.cores * duration - used, 0.0)
    figures.set("idle.core_time", held, NO_CORES)
    if data.gpu_count:
        figures.set("idle.gpu_time", data.gpu_count * duration)
    else:
        figures.set("idle.gpu_time", None, "the job has no GPU")
    holders = alive_after(data, since + timeline.width) if first < len(timeline) else []
    if holders:
        figures.set("idle.holder", holders[0].shown)
        figures.set("idle.holders", [program.shown for program in holders[:_MAX_HOLDERS]])
    else:
        reason = "the run worked to its end" if first == len(timeline) else "no program is known"
        figures.set("idle.holder", None, reason)
        figures.set("idle.holders", None, reason)


def alive_after(data: RunData, moment: float) -> list[Program]:
    """The programs that were alive after a moment: those that end last first, shells and launchers,
    which wait for others, last."""
    alive = [program for program in data.programs if program.last and program.last > moment]
    # Of programs that ended together, the one that began last was waited for.
    return sorted(
        alive,
        key=lambda program: (
            is_waiting(program.path),
            -round((program.last or 0.0) / 5),
            -(program.first or 0.0),
            program.path,
        ),
    )
