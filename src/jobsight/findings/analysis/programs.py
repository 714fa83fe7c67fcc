"""Where the time went, by program: what it used while it ran, and what failed or was started often.

Of each executable the first start, the last end and the CPU time are known, not the intervals in
between. The CPU time of the run as a function of time tells for how much of that time the program
was what ran.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from jobsight.findings.analysis.activity import working_cores
from jobsight.findings.analysis.arithmetic import NO_CORES, NO_TIMES, ratio
from jobsight.findings.data import Program, RunData
from jobsight.findings.program_names import answers_by_exit_code, is_sleep, is_waiting
from jobsight.findings.timeline import CPU, TimeSeries
from jobsight.findings.vocabulary import FigureSet

#: Programs whose intervals are compared with the CPU time of the run, the most CPU time first.
_MAX_PROGRAMS: Final = 200
#: Those that may be serial, and others that run at the same time as one of them.
_MAX_COMPARED: Final = 50
_MAX_OTHERS: Final = 16
#: Share of the CPU time of a program that is too small to be compared.
_SMALL: Final = 0.005
#: A program is responsible for an interval if it used this share of the CPU time in it.
_DOMINANT: Final = 0.5
#: Of the time of a program, at its beginning and its end.
_EDGE: Final = 0.05
#: Mean CPUs of a program on one core: readings of its time and CPU time are not of one moment.
_SERIAL: Final = 1.15
#: Share of the CPU time of a serial program that must be used while not more cores are busy.
_SERIAL_TIME: Final = 0.9
#: Programs whose failures are compared, the most failures first.
_MAX_FAILED: Final = 8
#: The share of failures of a program that answers by its exit code, if other runs do not tell.
_ANSWERS: Final = 0.5
#: CPU seconds by start of a short program.
_SHORT: Final = 0.1
#: CPU seconds that a program of the actual work reaches.
_STARTED: Final = 5.0


def add(data: RunData, figures: FigureSet) -> None:
    programs = data.programs
    if not programs:
        figures.unknown.setdefault("executables", "no program was seen")
        return
    series = cpu_series(data)
    executions = sum(program.executions for program in programs)
    figures.set("programs.executions", executions)
    figures.set("programs.rate", ratio(executions, data.span))
    _add_top(data, figures)
    _add_wasteful(data, figures, series)
    _add_serial(data, figures, series)
    _add_threads(data, figures)
    _add_failures(data, figures)
    _add_short(data, figures, series)
    _add_sleep(data, figures)
    _add_last(data, figures)
    if data.software:
        figures.set("programs.software", data.software)
    else:
        figures.set("programs.software", None, "no rule names a program of the run")
    _add_start(data, figures, series)


def cpu_series(data: RunData) -> TimeSeries:
    """The CPU time of the run as a function of time: of the time series, else that of the programs,
    each of which is taken to be busy evenly."""
    cpu = None if data.timeline is None else data.timeline.get(CPU)
    if data.timeline is not None and cpu is not None:
        return TimeSeries(data.timeline.edges, np.append(0.0, np.cumsum(cpu)) * data.timeline.width)
    steps: dict[float, float] = {}
    jumps: dict[float, float] = {}
    for program in data.programs[:_MAX_PROGRAMS]:
        if program.first is None or program.last is None:
            continue
        # At least a moment, so that there is a rate.
        last = max(program.last, program.first + 1e-3)
        rate = program.cpu / (last - program.first)
        jumps[program.first] = jumps.get(program.first, 0.0) + rate
        jumps[last] = jumps.get(last, 0.0) - rate
    if not jumps:
        return TimeSeries(np.array([0.0, max(data.span, 1.0)]), np.zeros(2))
    total, rate, before = 0.0, 0.0, 0.0
    for moment in sorted(jumps):
        total += rate * (moment - before)
        steps[moment] = total
        rate += jumps[moment]
        before = moment
    return TimeSeries(np.array(list(steps)), np.array(list(steps.values())))


def used_between(series: TimeSeries, first: float, last: float) -> float:
    """The CPU seconds of the run between two times."""
    before, after = np.interp((first, last), series.times, series.values)
    return float(after - before)


def _used_meanwhile(series: TimeSeries, first: float, last: float) -> float:
    """The CPU seconds of the run while a program ran: by the rate without both ends, because a
    sample at the end of one program has the CPU time of the next."""
    edge = _EDGE * (last - first)
    return used_between(series, first + edge, last - edge) / (1 - 2 * _EDGE)


def _add_top(data: RunData, figures: FigureSet) -> None:
    top = data.programs[0]
    used = sum(program.cpu for program in data.programs)
    if top.cpu <= 0:
        figures.set("programs.top", None, "no program used CPU time")
        return
    figures.set("programs.top", top.shown)
    figures.set("programs.top_share", ratio(top.cpu, used))
    cores = top.mean_cores(data.cores)
    figures.set("programs.top_cores", cores, NO_TIMES)


class _Waste(NamedTuple):
    """CPU time that was idle between the first start and the last end of a program."""

    idle: float
    program: Program
    span: float


def _add_wasteful(data: RunData, figures: FigureSet, series: TimeSeries) -> None:
    names = ("wasteful", "wasteful_cores", "wasteful_share", "wasteful_idle")
    if data.cores is None or not data.span:
        for name in names:
            figures.set(f"programs.{name}", None, NO_CORES)
        return
    found: list[_Waste] = []
    for program in data.programs[:_MAX_PROGRAMS]:
        span = program.span
        if span is None or program.first is None or program.last is None:
            continue
        used = _used_meanwhile(series, program.first, program.last)
        if program.cpu <= 0 or program.cpu < _DOMINANT * used or is_sleep(program.path):
            continue
        idle = data.cores * span - max(used, program.cpu)
        if idle > 0:
            found.append(_Waste(idle, program, span))
    worst = max(found, key=lambda waste: waste.idle, default=None)
    if worst is None:
        timed = any(program.span is not None for program in data.programs[:_MAX_PROGRAMS])
        for name in names:
            figures.set(
                f"programs.{name}", None, "no single program left CPUs idle" if timed else NO_TIMES
            )
        return
    figures.set("programs.wasteful", worst.program.shown)
    figures.set("programs.wasteful_cores", worst.program.mean_cores(data.cores))
    figures.set("programs.wasteful_share", worst.span / data.span)
    figures.set("programs.wasteful_idle", worst.idle)


def _add_serial(data: RunData, figures: FigureSet, series: TimeSeries) -> None:
    programs = data.programs[:_MAX_COMPARED]
    used = sum(program.cpu for program in data.programs)
    if used <= 0:
        figures.set("programs.serial_share", None, "no program used CPU time")
        return
    if all(program.span is None for program in programs):
        figures.set("programs.serial_share", None, NO_TIMES)
        return
    # What is used by smaller programs is not worth the comparison.
    programs = [program for program in programs if program.cpu >= _SMALL * used]
    lives = [life for program in programs[:_MAX_OTHERS] if (life := _life(program)) is not None]
    serial = sum(program.cpu for program in programs if _is_serial(program, lives, series))
    figures.set("programs.serial_share", serial / used)


class _Life(NamedTuple):
    """A program from its first start to its last end, and the CPUs that it kept busy."""

    program: Program
    first: float
    last: float
    cores: float


def _life(program: Program) -> _Life | None:
    cores = program.mean_cores(None)
    if cores is None or program.first is None or program.last is None:
        return None
    return _Life(program, program.first, program.last, cores)


def _is_serial(program: Program, lives: Sequence[_Life], series: TimeSeries) -> bool:
    """Whether a program kept one core busy: on average, and while it used its CPU time. One that is
    started now and then on many cores has a low mean as well."""
    life = _life(program)
    if life is None or life.cores > _SERIAL:
        return False
    half = 0.5 * (life.last - life.first)
    others = sum(
        other.cores
        for other in lives
        if other.program is not program
        and min(other.last, life.last) - max(other.first, life.first) > half
    )
    first, last = np.searchsorted(series.times, (life.first, life.last))
    values = series.values[max(int(first) - 1, 0) : int(last) + 1]
    times = series.times[max(int(first) - 1, 0) : int(last) + 1]
    if len(times) < 2:
        return True
    grown, widths = values[1:] - values[:-1], times[1:] - times[:-1]
    on_one = grown[grown <= (_SERIAL + others) * widths]
    return float(on_one.sum()) >= _SERIAL_TIME * float(grown.sum())


def _add_threads(data: RunData, figures: FigureSet) -> None:
    timeline = data.timeline
    threads = None if timeline is None else timeline.get("tasks.threads")
    if timeline is None or threads is None:
        figures.set("programs.threads_peak", None, "the threads were not counted")
    elif len(timeline.nodes) == 1:
        figures.set("programs.threads_peak", timeline.highest["tasks.threads"])
    else:
        figures.set("programs.threads_peak", float(threads.max()))
    running = None if timeline is None else timeline.mean("tasks.running")
    reason = "the states of the threads were not read"
    figures.set("programs.running_mean", running, reason)


def _add_failures(data: RunData, figures: FigureSet) -> None:
    """The program whose failures are the least expected: it fails often here and rarely elsewhere,
    and its exit code is not an answer, as that of grep."""
    failed = [program for program in data.programs if program.failures > 0]
    # A shell or a launcher ends with the failure of what it started.
    own = [program for program in failed if not is_waiting(program.path)] or failed
    if not own:
        figures.set("programs.failures", 0)
        for name in ("failed", "failed_executions", "failed_share", "failed_habit"):
            figures.set(f"programs.{name}", None, "no program failed")
        return
    most = heapq.nlargest(_MAX_FAILED, own, key=lambda program: program.failures)
    habits = {program: _habit(data, program) for program in most}
    worst = max(most, key=lambda program: (program.failures * (1 - (habits[program] or 0.0)),
                                           program.cpu))  # fmt: skip
    starts = max(worst.starts, worst.failures)
    figures.set("programs.failed", worst.shown)
    figures.set("programs.failures", worst.failures)
    figures.set("programs.failed_executions", starts)
    figures.set("programs.failed_share", worst.failures / starts)
    figures.set("programs.failed_habit", habits[worst], "few other users have started it")


def _habit(data: RunData, program: Program) -> float | None:
    """The share of its starts that fail in runs of other users."""
    habit = None
    if data.surroundings is not None:
        habit = data.surroundings.failure_habit(program.path, data.info.user, data.now)
    return _ANSWERS if habit is None and answers_by_exit_code(program.path) else habit


def _add_short(data: RunData, figures: FigureSet, series: TimeSeries) -> None:
    short = [
        program
        for program in data.programs
        if program.executions > 1 and program.cpu < _SHORT * program.executions
    ]
    used = sum(program.cpu for program in data.programs)
    time = sum(program.cpu for program in short)
    figures.set("programs.short_time", time)
    figures.set("programs.short_share", ratio(time, used), "no program used CPU time")
    # Programs without a path of their own share a name.
    most = max(short, key=lambda program: (program.known, program.executions), default=None)
    figures.set("programs.short", None if most is None else most.shown, "there is none")
    figures.set("programs.short_executions", 0 if most is None else most.executions)
    # A loop on one of many CPUs holds all of them.
    held = time
    for program in short:
        if program.first is None or program.last is None or not data.cores:
            continue
        if program.cpu >= _DOMINANT * _used_meanwhile(series, program.first, program.last):
            held = max(held, data.cores * (program.last - program.first))
    figures.set("programs.short_held", held)


def _add_sleep(data: RunData, figures: FigureSet) -> None:
    """The time in which a sleep was waited for and nothing else used a CPU."""
    timeline = data.timeline
    cpu = None if timeline is None else timeline.get(CPU)
    if timeline is None or cpu is None:
        figures.set("programs.sleep_share", None, data.timeline_reason)
        return
    idle = cpu <= working_cores(data.cores)
    centres = (timeline.edges[1:] + timeline.edges[:-1]) / 2
    asleep = np.zeros(len(cpu), np.bool_)
    for program in data.programs:
        if is_sleep(program.path) and program.first is not None and program.last is not None:
            asleep |= (centres >= program.first) & (centres <= program.last)
    figures.set("programs.sleep_share", float((asleep & idle).mean()))


def _add_last(data: RunData, figures: FigureSet) -> None:
    seen = [program for program in data.programs if program.last is not None]
    last = max(
        seen,
        key=lambda program: (
            not is_waiting(program.path),
            round((program.last or 0.0) / 5),
            program.first or 0.0,
        ),
        default=None,
    )
    figures.set("programs.last", last.shown if last else None, NO_TIMES)


def _add_start(data: RunData, figures: FigureSet, series: TimeSeries) -> None:
    """The time until a program had used 5 s of CPU time, and what ran meanwhile."""
    moments: list[tuple[float, Program]] = []
    for program in data.programs[:_MAX_PROGRAMS]:
        if program.cpu < _STARTED or program.first is None or program.last is None:
            continue
        if is_sleep(program.path):
            continue
        # Its share of the CPU time that the run used between its first start and its last end.
        begun, ended = np.interp((program.first, program.last), series.times, series.values)
        needed = begun + _STARTED * max(ended - begun, program.cpu) / program.cpu
        reached = float(np.interp(needed, series.values, series.times))
        moments.append((min(max(reached, program.first), program.last), program))
    names = ("duration", "share", "core_time", "program")
    if not moments:
        reason = "no program used 5 s of CPU time"
        if data.programs[0].cpu >= _STARTED:
            reason = NO_TIMES
        for name in names:
            figures.set(f"start.{name}", None, reason)
        return
    moment, started = min(moments, key=lambda found: found[0])
    figures.set("start.duration", moment)
    figures.set("start.share", ratio(moment, data.span))
    figures.set("start.core_time", data.cores * moment if data.cores else None, NO_CORES)
    figures.set("start.program", _most_until(data.programs, moment, started).shown)


def _most_until(programs: Sequence[Program], moment: float, started: Program) -> Program:
    """The program with the most CPU time before a moment."""
    best, most = started, _STARTED
    for program in programs:
        if program is started or program.first is None or program.last is None:
            continue
        if program.first < moment:
            share = min(moment - program.first, 1e18) / max(program.last - program.first, 1e-3)
            used = program.cpu * min(share, 1.0)
            if used > most:
                best, most = program, used
    return best
