"""The series of one job, prepared as text with each sample: a scrape only puts them together.

Every figure of the seed's exporter of jobs, with right meanings, from one view of a job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from jobsight.agent.job import JobView, Row, Sampler
from jobsight.agent.samplers.cpu import CoreTimes
from jobsight.agent.samplers.files import Files
from jobsight.agent.samplers.gpu.devices import parse_gpu_list
from jobsight.agent.samplers.gpu.nvml import GpuReading
from jobsight.agent.samplers.gpu.sampler import GpuSampler
from jobsight.agent.samplers.processes import Threads
from jobsight.model import MISSING, SECOND
from jobsight.prometheus import names
from jobsight.prometheus.exposition import labels_text
from jobsight.text import readable_text

#: Name of a curve's family, the label of its thing, and what the value is divided by.
_Plan = tuple[str, str, int]
#: Of the curves of all jobs, which have the same names: one dictionary and not one for each.
_plans: Final[dict[str, _Plan | None]] = {}
#: Names of curves and programs that are kept; what is in use is back with the next sample.
_MOST_KEPT: Final = 10_000
#: A job's name and its like; Prometheus refuses nothing, but a label is kept for years.
_LONGEST: Final = 200


class JobSeries:
    """What is offered of one job now. Rendered by the loop, read by the scrapes' threads: each
    rendering is a new dictionary, so that no reader sees half of one."""

    def __init__(self, view: JobView, *, petricore_names: bool) -> None:
        sighting = view.sighting
        self.key = (sighting.node, sighting.job_id)
        #: Text of the samples by the name of their family.
        self.lines: dict[str, str] = {}
        #: What its GPUs said last, where that is offered, too.
        self.gpus: dict[str, GpuReading] = {}
        self.count = 0
        self.left_out = 0
        #: When it goes, on the monotonic clock; None while the job runs.
        self.gone_at: float | None = None
        self._petricore_names = petricore_names
        job = str(sighting.job_id)
        own = dict(zip(names.JOB_LABELS, (sighting.cluster, sighting.node, job), strict=True))
        self._own = "{" + labels_text(own)
        self._seed = "{" + labels_text(
            dict(zip(names.PETRICORE_LABELS, (sighting.node, job), strict=True))
        )
        self._info: tuple[object, ...] = ()
        self._fixed: list[tuple[str, str]] = []

    def render(self, view: JobView, row: Row, samplers: Iterable[Sampler], room: int) -> None:
        """Write the samples anew, so many at most; what no label tells apart comes first."""
        self._describe(view)
        samples = list(self._fixed)
        add, own = samples.append, self._own
        for metric, value in row.items():
            if value == MISSING:
                continue
            try:
                plan = _plans[metric]
            except KeyError:
                plan = _keep(_plans, metric, _plan(metric))
            if plan is not None:
                name, label, divisor = plan
                number = value if divisor == 1 else value / divisor
                add((name, f"{name}{own}{label}}} {number!r}\n"))
        figures = petricore_figures(view, samplers)
        if self._petricore_names:
            self._add_seed(samples, figures)
        self._add_programs(samples, figures)
        self.left_out = max(0, len(samples) - room)
        del samples[room:]
        self.count = len(samples)
        gathered: dict[str, list[str]] = {}
        for name, text in samples:
            gathered.setdefault(name, []).append(text)
        self.lines = {name: "".join(texts) for name, texts in gathered.items()}

    def _describe(self, view: JobView) -> None:
        """Who the job is; made anew only when somebody has said more."""
        info = view.info
        known = (info.user, info.account, info.partition, info.name, info.cpus, info.memory)
        if known == self._info:
            return
        self._info = known
        labels = {
            label: readable_text(str(value or ""))[:_LONGEST]
            for label, value in zip(names.INFO.labels, known[:4], strict=True)
        }
        self._fixed = [
            (names.INFO.name, f"{names.INFO.name}{self._own},{labels_text(labels)}}} 1\n"),
            self._one(names.START, view.sighting.birth / SECOND),
        ]
        if info.cpus is not None:
            self._fixed.append(self._one(names.REQUESTED_CPUS, info.cpus))
        if info.memory is not None:
            self._fixed.append(self._one(names.REQUESTED_MEMORY, info.memory))

    def _one(self, family: names.Family, value: int | float) -> tuple[str, str]:
        return family.name, f"{family.name}{self._own}}} {value!r}\n"

    def _add_seed(self, samples: list[tuple[str, str]], figures: dict[str, Any]) -> None:
        seed = self._seed
        labelled = []
        for name, value in figures.items():
            if isinstance(value, dict):
                labelled.append((name, value))
            else:
                samples.append((name, f"{name}{seed}}} {value!r}\n"))
        for name, values in labelled:
            (label,) = names.PETRICORE[name].labels
            for thing, value in values.items():
                samples.append((name, f"{name}{seed},{_label(label, thing)}}} {value!r}\n"))

    def _add_programs(self, samples: list[tuple[str, str]], figures: dict[str, Any]) -> None:
        name = names.PROGRAM_THREADS.name
        for program, threads in figures.get("jobs_thread_count", {}).items():
            label = _label("program", program)
            samples.append((name, f"{name}{self._own},{label}}} {threads}\n"))


def _plan(metric: str) -> _Plan | None:
    found = names.family_of(metric)
    if found is None:
        # A sampler of the site's own, which the table does not know.
        return None
    family, thing = found
    label = "," + _label(family.labels[0], thing) if thing is not None else ""
    return family.name, label, family.divisor


_labels: Final[dict[tuple[str, str], str]] = {}


def _label(name: str, value: str) -> str:
    try:
        return _labels[name, value]
    except KeyError:
        return _keep(_labels, (name, value), labels_text({name: value}))


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _keep(table: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    if len(table) >= _MOST_KEPT:
        table.clear()
    table[key] = value
    return value


T = TypeVar("T")

MEBIBYTE: Final = 2**20
#: Figure -> metric of the engine's row, and what it is divided by.
_ROW: Final = {
    "jobs_spawned_processes": ("tasks.processes", 1),
    "jobs_system_time": ("cpu.system", SECOND),
    "jobs_user_time": ("cpu.user", SECOND),
    "jobs_cpu_time_total": ("cpu.time", SECOND),
    "jobs_rss": ("memory.used", MEBIBYTE),
    "jobs_read_mb": ("io.read_bytes", MEBIBYTE),
    "jobs_write_mb": ("io.written_bytes", MEBIBYTE),
    "jobs_read_count": ("io.read_calls", 1),
    "jobs_write_count": ("io.write_calls", 1),
}


def petricore_figures(view: JobView, samplers: Iterable[Sampler]) -> dict[str, Any]:
    """The seed's figures by its names; one with a label is a dictionary by the label's value.

    Times are seconds, sizes mebibytes, CPU use percent of one core; reads and writes include the
    processes that have ended. What is not known is left out.
    """
    there = list(samplers)
    found: dict[str, Any] = {}
    for name, (metric, divisor) in _ROW.items():
        value = view.row.get(metric, MISSING)
        if value != MISSING:
            found[name] = value if divisor == 1 else value / divisor
    cores = _one(there, CoreTimes)
    if cores is not None:
        _add_cores(found, cores)
    threads = _one(there, Threads)
    if threads is not None:
        programs = threads.programs(view)
        found["jobs_thread_count"] = {name: one["threads"] for name, one in programs.items()}
    files = _one(there, Files)
    if files is not None:
        # The seed counts paths; where links may not be read, descriptors are the next best.
        opened = files.open_paths if files.open_paths is not None else files.open_now
        if opened is not None:
            found["jobs_opened_files"] = opened
        if files.scratch_used is not None:
            found["jobs_uses_scratch"] = int(files.scratch_used)
    gpus = _one(there, GpuSampler)
    if gpus is not None:
        # Without a driver to ask there is still what Slurm or the prolog said.
        said = parse_gpu_list(",".join(view.gpus or ()))
        found["jobs_gpus_used"] = dict.fromkeys(gpus.gpus or said, 1)
    return found


def _add_cores(found: dict[str, Any], cores: CoreTimes) -> None:
    times = cores.times
    if times:
        found["jobs_cpu_time_core"] = {str(core): time / SECOND for core, time in times.items()}
    if cores.in_use is None:
        return
    found["jobs_cpu_percent"] = cores.in_use * 100
    count = len(cores.cores) if cores.cores is not None else len(times)
    if count:
        found["jobs_cpu_percent_per_core"] = cores.in_use * 100 / count


def _one(samplers: list[Sampler], kind: type[T]) -> T | None:
    return next((sampler for sampler in samplers if isinstance(sampler, kind)), None)
