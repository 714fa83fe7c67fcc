"""The series of one job, rendered as text at each sample.

:class:`JobSeries` renders jobsight's names from the engine's row, and petricore's names from
:func:`petricore_values`, which computes every value of petricore's jobs_exporter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from jobsight.agent.job import JobView, Row, Sampler
from jobsight.agent.samplers.cpu import CoreTimes
from jobsight.agent.samplers.files import Files
from jobsight.agent.samplers.gpu.devices import parse_gpu_list
from jobsight.agent.samplers.gpu.sampler import GpuSampler
from jobsight.agent.samplers.gpu.source import GpuReading
from jobsight.agent.samplers.processes import Threads
from jobsight.model import MISSING, SECOND
from jobsight.prometheus import names
from jobsight.prometheus.exposition import labels_text
from jobsight.prometheus.names import MEBIBYTE
from jobsight.text import readable_text

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Sampler = TypeVar("_Sampler")

#: Family, label and divisor of a metric; None for a metric that is not exported.
_Spec = tuple[str, str, int] | None
#: The jobs share their metric names, so one cache serves all of them.
_specs: Final[dict[str, _Spec]] = {}
_labels: Final[dict[tuple[str, str], str]] = {}
#: Entries of each cache. A full cache is emptied and filled again by the next sample.
_MAX_CACHED: Final = 10_000
#: Characters of a label value, which Prometheus stores for years.
_MAX_LABEL: Final = 200
#: petricore's name -> metric of the engine's row, and its divisor.
_PETRICORE_METRICS: Final = {
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


class JobSeries:
    """The exposed series of one job.

    The loop renders them, the threads of scrapes read them. Each rendering replaces the
    dictionary of lines, so that no reader sees a partial one.
    """

    def __init__(self, view: JobView, *, petricore_names: bool) -> None:
        sighting = view.sighting
        self.key = (sighting.node, sighting.job_id)
        #: Rendered samples by family.
        self.lines: dict[str, str] = {}
        #: The last readings of the job's GPUs, if nvidia_smi_exporter's names are exposed.
        self.gpus: dict[str, GpuReading] = {}
        self.count = 0
        #: Samples of the last rendering beyond the limit.
        self.left_out = 0
        #: When the series are removed, on the monotonic clock; None while the job runs.
        self.expires_at: float | None = None
        self._petricore_names = petricore_names
        job = str(sighting.job_id)
        own = dict(zip(names.JOB_LABELS, (sighting.cluster, sighting.node, job), strict=True))
        self._own = "{" + labels_text(own)
        petricore = dict(zip(names.PETRICORE_LABELS, (sighting.node, job), strict=True))
        self._petricore = "{" + labels_text(petricore)
        self._info: tuple[object, ...] = ()
        self._info_samples: list[tuple[str, str]] = []

    def render(self, view: JobView, row: Row, samplers: Iterable[Sampler], limit: int) -> None:
        """Render the samples, at most ``limit``; those without a label of their own come first."""
        self._render_info(view)
        samples = list(self._info_samples)
        add, own = samples.append, self._own
        for metric, value in row.items():
            if value == MISSING:
                continue
            try:
                spec = _specs[metric]
            except KeyError:
                spec = _cache(_specs, metric, _spec_of(metric))
            if spec is not None:
                name, label, divisor = spec
                number = value if divisor == 1 else value / divisor
                add((name, f"{name}{own}{label}}} {number!r}\n"))
        values = petricore_values(view, samplers)
        if self._petricore_names:
            self._add_petricore(samples, values)
        self._add_programs(samples, values)
        self.left_out = max(0, len(samples) - limit)
        del samples[limit:]
        self.count = len(samples)
        by_name: dict[str, list[str]] = {}
        for name, text in samples:
            by_name.setdefault(name, []).append(text)
        self.lines = {name: "".join(texts) for name, texts in by_name.items()}

    def _render_info(self, view: JobView) -> None:
        """Render identity and requested resources, if they changed."""
        info = view.info
        known = (info.user, info.account, info.partition, info.name, info.cpus, info.memory)
        if known == self._info:
            return
        self._info = known
        labels = {
            label: readable_text(str(value or ""))[:_MAX_LABEL]
            for label, value in zip(names.INFO.labels, known[:4], strict=True)
        }
        self._info_samples = [
            (names.INFO.name, f"{names.INFO.name}{self._own},{labels_text(labels)}}} 1\n"),
            self._sample(names.START, view.sighting.birth / SECOND),
        ]
        if info.cpus is not None:
            self._info_samples.append(self._sample(names.REQUESTED_CPUS, info.cpus))
        if info.memory is not None:
            self._info_samples.append(self._sample(names.REQUESTED_MEMORY, info.memory))

    def _sample(self, family: names.Family, value: int | float) -> tuple[str, str]:
        return family.name, f"{family.name}{self._own}}} {value!r}\n"

    def _add_petricore(self, samples: list[tuple[str, str]], values: dict[str, Any]) -> None:
        common = self._petricore
        labelled = []
        for name, value in values.items():
            if isinstance(value, dict):
                labelled.append((name, value))
            else:
                samples.append((name, f"{name}{common}}} {value!r}\n"))
        for name, by_item in labelled:
            (label,) = names.PETRICORE[name].labels
            for item, value in by_item.items():
                samples.append((name, f"{name}{common},{_label(label, item)}}} {value!r}\n"))

    def _add_programs(self, samples: list[tuple[str, str]], values: dict[str, Any]) -> None:
        name = names.PROGRAM_THREADS.name
        for program, threads in values.get("jobs_thread_count", {}).items():
            label = _label("program", program)
            samples.append((name, f"{name}{self._own},{label}}} {threads}\n"))


def _spec_of(metric: str) -> _Spec:
    match = names.family_of(metric)
    if match is None:
        # A metric of a site's own sampler.
        return None
    family, item = match
    label = "," + _label(family.labels[0], item) if item is not None else ""
    return family.name, label, family.divisor


def _label(name: str, value: str) -> str:
    try:
        return _labels[name, value]
    except KeyError:
        return _cache(_labels, (name, value), labels_text({name: value}))


def _cache(table: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    if len(table) >= _MAX_CACHED:
        table.clear()
    table[key] = value
    return value


def petricore_values(view: JobView, samplers: Iterable[Sampler]) -> dict[str, Any]:
    """petricore's values by name; a family with a label is a dictionary by the label's value.

    Times are in seconds, sizes in mebibytes, CPU use in percent of one core. Reads and writes
    include processes that have ended. What is not known is left out.
    """
    configured = list(samplers)
    values: dict[str, Any] = {}
    for name, (metric, divisor) in _PETRICORE_METRICS.items():
        value = view.row.get(metric, MISSING)
        if value != MISSING:
            values[name] = value if divisor == 1 else value / divisor
    cores = _of_type(configured, CoreTimes)
    if cores is not None:
        _add_cores(values, cores)
    threads = _of_type(configured, Threads)
    if threads is not None:
        programs = threads.programs(view)
        values["jobs_thread_count"] = {name: one["threads"] for name, one in programs.items()}
    files = _of_type(configured, Files)
    if files is not None:
        # petricore counts paths; descriptors are the fallback if links are not readable.
        opened = files.open_paths if files.open_paths is not None else files.open_now
        if opened is not None:
            values["jobs_opened_files"] = opened
        if files.scratch_used is not None:
            values["jobs_uses_scratch"] = int(files.scratch_used)
    gpus = _of_type(configured, GpuSampler)
    if gpus is not None:
        # Without a driver, use what Slurm or the prolog announced.
        announced = parse_gpu_list(",".join(view.gpus or ()))
        values["jobs_gpus_used"] = dict.fromkeys(gpus.gpus or announced, 1)
    return values


def _add_cores(values: dict[str, Any], cores: CoreTimes) -> None:
    times = cores.times
    if times:
        values["jobs_cpu_time_core"] = {str(core): time / SECOND for core, time in times.items()}
    if cores.in_use is None:
        return
    values["jobs_cpu_percent"] = cores.in_use * 100
    count = len(cores.cores) if cores.cores is not None else len(times)
    if count:
        values["jobs_cpu_percent_per_core"] = cores.in_use * 100 / count


def _of_type(samplers: list[Sampler], kind: type[_Sampler]) -> _Sampler | None:
    return next((sampler for sampler in samplers if isinstance(sampler, kind)), None)
