"""The steps of a batch script: whether they ran one after the other, and side by side how long.

Start, end and CPU time come from Slurm's accounting where it has them, else from the agents. The
bound of :func:`pack` is a greedy one, the longest step first: it does not know what a step waits
for, so that a rule may use it only for steps that are alike.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from typing import Final, NamedTuple

from jobsight.findings.analysis.arithmetic import NO_CORES
from jobsight.findings.data import RunData
from jobsight.findings.vocabulary import FigureSet
from jobsight.model import SECOND

#: Steps that are not started by the script.
_OTHERS: Final = frozenset({"", "batch", "extern", "interactive"})
#: Share of the steps' time in which two may run at once and still be one after the other.
_OVERLAP: Final = 0.05
_MAX_STEPS: Final = 20_000


class Step(NamedTuple):
    """A step of the script, in seconds since the start of the run."""

    first: float
    last: float
    #: CPU seconds; None if not known.
    cpu: float | None
    memory: int | None
    name: str | None

    @property
    def duration(self) -> float:
        return self.last - self.first

    @property
    def cores(self) -> float:
        """The CPUs that it kept busy."""
        return self.cpu / self.duration if self.cpu and self.duration > 0 else 0.0


def add(data: RunData, figures: FigureSet) -> None:
    steps = steps_of(data)
    named = {step.use.step for step in data.steps} | {
        step.step for step in (data.details.steps if data.details else ())
    }
    count = len({name for name in named if name not in _OTHERS})
    if not named:
        for name in ("count", "sequential", "alike"):
            figures.set(f"steps.{name}", None, "no step is known")
    else:
        figures.set("steps.count", count)
    dependent = ("sequential", "alike", "cores_peak", "idle", "packed_elapsed")
    if not steps:
        reason = "the run has no steps" if not count else "it is not known when the steps ran"
        for name in dependent:
            figures.set(f"steps.{name}", None, reason)
        return
    names = Counter(step.name for step in steps if step.name)
    alike = names.most_common(1)[0][1] / len(steps) if names else None
    figures.set("steps.alike", alike, "the names of the steps are not known")
    covered, overlap, peak = _sweep(steps)
    figures.set("steps.sequential", len(steps) > 1 and overlap <= _OVERLAP * covered)
    if any(step.cpu is None for step in steps):
        for name in ("cores_peak", "idle", "packed_elapsed"):
            figures.set(f"steps.{name}", None, "the CPU time of some steps is not known")
        return
    figures.set("steps.cores_peak", peak)
    if data.cores is None:
        figures.set("steps.idle", None, NO_CORES)
        figures.set("steps.packed_elapsed", None, NO_CORES)
        return
    used = sum(step.cpu or 0.0 for step in steps)
    figures.set("steps.idle", max(data.cores * covered - used, 0.0))
    requested = figures.values.get("memory.requested")
    memory = requested if isinstance(requested, float) else None
    between = max(data.span - covered, 0.0)
    figures.set("steps.packed_elapsed", between + pack(steps, data.cores, memory))


def steps_of(data: RunData) -> list[Step]:
    """The steps that the script started and whose times are known."""
    start, span = data.start, data.span
    measured: dict[str, list[float]] = {}
    peaks: dict[str, int] = {}
    seen: dict[str, tuple[int, int]] = {}
    for stored in data.steps:
        use = stored.use
        if use.cpu_time is not None:
            measured.setdefault(use.step, []).append(use.cpu_time / SECOND)
        if use.memory_peak is not None:
            peaks[use.step] = peaks.get(use.step, 0) + use.memory_peak
        if use.first_seen and use.last_seen:
            first, last = seen.get(use.step, (use.first_seen, use.last_seen))
            seen[use.step] = min(first, use.first_seen), max(last, use.last_seen)
    names: dict[str, str | None] = {}
    for record in data.details.steps if data.details else ():
        names[record.step] = record.name
        if record.start is not None and (record.end is not None or data.state.running):
            until = record.end if record.end is not None else start + round(span * SECOND)
            seen[record.step] = record.start, until
        if record.step not in measured and record.cpu_time is not None:
            measured[record.step] = [record.cpu_time / SECOND]
    steps = []
    for step, (first, last) in seen.items():
        if step in _OTHERS or last < first:
            continue
        begin = min(max((first - start) / SECOND, 0.0), span)
        end = min(max((last - start) / SECOND, begin), span)
        cpu = sum(measured[step]) if step in measured else None
        steps.append(Step(begin, end, cpu, peaks.get(step), names.get(step)))
    return sorted(steps)[:_MAX_STEPS] if len(steps) > _MAX_STEPS else steps


def _sweep(steps: list[Step]) -> tuple[float, float, float]:
    """Seconds with any step, seconds with several, and the most CPUs that were busy."""
    events: list[tuple[float, int, float]] = []
    for step in steps:
        events += ((step.first, 1, step.cores), (step.last, -1, -step.cores))
    covered, overlap, peak, cores, before, running = 0.0, 0.0, 0.0, 0.0, 0.0, 0
    # An end is before a start at the same time.
    for moment, change, busy in sorted(events):
        if running:
            covered += moment - before
        if running > 1:
            overlap += moment - before
        running += change
        cores += busy
        peak = max(peak, cores)
        before = moment
    return covered, overlap, peak


def pack(steps: list[Step], cores: int, memory: float | None) -> float:
    """The time that the steps need side by side: each when its CPUs and its memory are free, the
    longest first."""
    free: float = cores
    left = memory
    running: list[tuple[float, float, float]] = []
    now = end = 0.0
    for step in sorted(steps, key=lambda step: -step.duration):
        width = min(max(math.ceil(step.cores - 0.15), 1), cores)
        size = 0.0 if left is None else min(float(step.memory or 0), memory or 0.0)
        while running and (free < width or (left is not None and left < size)):
            now, width_ended, size_ended = heapq.heappop(running)
            free += width_ended
            left = None if left is None else left + size_ended
        free -= width
        left = None if left is None else left - size
        heapq.heappush(running, (now + step.duration, float(width), size))
        end = max(end, now + step.duration)
    return end
