"""The GPUs of a job: which they are, their time series, and the documents of SAMS's NvidiaSMI."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence, Set
from typing import TYPE_CHECKING, Final, Unpack

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.processes.executables import ExecutableName
from jobsight.agent.samplers.base import JobSampler, SamplerOptions, duration, text_list
from jobsight.agent.samplers.gpu.devices import NodeGpus, parse_gpu_list
from jobsight.agent.samplers.gpu.source import Gpu, GpuReading, GpuSource
from jobsight.model import GPU_FIGURES, MISSING, Coverage, GpuUse

if TYPE_CHECKING:
    from jobsight.agent.samplers.gpu.meter import GpuState, JobGpu, Totals

logger = logging.getLogger(__name__)

#: Metric -> field of :class:`GpuReading`, and the factor to the metric's unit.
_COLUMNS: Final = {
    "memory_utilization": ("memory_utilization", 1),
    "memory_used": ("memory_used", 1),
    "power": ("power", 1000),
    "temperature": ("temperature", 1),
    "clock": ("clock_sm", 1_000_000),
}
#: Counters of the job, by their names as metrics and in the totals.
_COUNTERS: Final = tuple(
    name for group in ("profile", "pcie", "nvlink") for name in GPU_FIGURES[group]
)
#: More than a node has; the store accepts no more.
_MAX_GPUS: Final = 256
#: Processes of a job whose executable and step are kept after they have ended.
_MAX_ENDED: Final = 1024
#: Name in nvidia-smi -> field of :class:`GpuReading`, divisor and decimals of the printed value.
_PRINTED: Final = {
    "power.draw": ("power", 1000, 2),
    "power.limit": ("power_limit", 1000, 2),
    "enforced.power.limit": ("power_limit", 1000, 2),
    "clocks.applications.memory": ("application_memory", 1, 0),
    "clocks.applications.graphics": ("application_graphics", 1, 0),
    "clocks.current.graphics": ("clock_graphics", 1, 0),
    "clocks.current.sm": ("clock_sm", 1, 0),
    "clocks.current.memory": ("clock_memory", 1, 0),
    "utilization.gpu": ("utilization", 1, 0),
    "utilization.memory": ("memory_utilization", 1, 0),
    "memory.used": ("memory_used", 2**20, 0),
    "memory.total": ("memory_total", 2**20, 0),
    "temperature.gpu": ("temperature", 1, 0),
}
#: nvidia-smi's other names for some of them.
_ALIASES: Final = {
    "clocks.applications.gr": "clocks.applications.graphics",
    "clocks.applications.mem": "clocks.applications.memory",
    "clocks.gr": "clocks.current.graphics",
    "clocks.mem": "clocks.current.memory",
    "clocks.sm": "clocks.current.sm",
    "gpu.power.current_limit": "enforced.power.limit",
    "gpu.power.requested_limit": "power.limit",
}
_METRICS: Final = (
    "power.draw",
    "power.limit",
    "clocks.applications.memory",
    "clocks.applications.graphics",
    "clocks.current.graphics",
    "clocks.current.sm",
    "utilization.gpu",
    "utilization.memory",
)
_AVERAGES: Final = ("power.draw", "utilization.gpu", "utilization.memory")


def _row(held: JobGpu, totals: Totals | None) -> dict[str, int]:
    """The metrics of one GPU; all of them are missing while the driver does not answer."""
    # Imported here: a node without a GPU pays no memory for it.
    from jobsight.agent.samplers.gpu.meter import throttled_time

    row: dict[str, int] = {}
    late = totals is None
    utilization = None if late or held.reading.failure else held.mean_utilization()
    if utilization is not None:
        row["utilization"] = utilization
    elif held.gauges["utilization"].last is not None:
        row["utilization"] = MISSING
    for metric, (field, factor) in _COLUMNS.items():
        value = None if late else getattr(held.reading, field)
        if value is not None:
            row[metric] = value * factor
        elif held.gauges[field].last is not None:
            row[metric] = MISSING
    for name in ("energy", *_COUNTERS):
        if name in held.totals:
            row[name] = MISSING if totals is None else round(totals[name])
    if "known throttling" in held.totals:
        row["throttled_time"] = MISSING if totals is None else throttled_time(totals)
    return row


def _names(where: str, key: str, value: object) -> tuple[str, ...]:
    return tuple(_ALIASES.get(name, name) for name in text_list(where, key, value))


class GpuSampler(JobSampler):
    """Utilization, memory, power, temperature and clocks of each GPU that belongs to the job."""

    name = "sams.sampler.NvidiaSMI"

    def __init__(
        self,
        *,
        nvidia_smi_command: str = "/usr/bin/nvidia-smi",
        gpu_index_environment: str = "SLURM_JOB_GPUS",
        nvidia_smi_metrics: Sequence[str] = _METRICS,
        metrics_to_average: Sequence[str] = _AVERAGES,
        timeout: float = 10.0,
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        self._metrics = _names(self.name, "nvidia_smi_metrics", nvidia_smi_metrics)
        self._averages = _names(self.name, "metrics_to_average", metrics_to_average)
        command_timeout = duration(self.name, "timeout", timeout)
        self._gpus = self.node.shared(
            "gpus", lambda: NodeGpus(self.node, nvidia_smi_command, command_timeout)
        )
        others = [name for name in self._metrics + self._averages if name not in _PRINTED]
        self._gpus.printed.request(others, self.interval)
        self._variable = gpu_index_environment
        self._job_gpus: dict[str, JobGpu] = {}
        self._estimated = False
        self._unknown: list[str] = []
        self._started = False
        #: The GPUs that are not the job's as of the last round, in case its processes use one.
        self._before: dict[str, GpuState] = {}
        #: The executable and the step of the processes that were seen on a GPU, by PID; those that
        #: were not seen for longest come first.
        self._seen: dict[int, tuple[ExecutableName, str]] = {}

    @property
    def gpus(self) -> dict[str, bool]:
        """The keys of the job's GPUs, and whether each has ever been used."""
        return {key: not held.never_used for key, held in self._job_gpus.items()}

    @property
    def readings(self) -> dict[str, GpuReading]:
        """The last reading of each GPU of the job."""
        return {key: held.reading for key, held in self._job_gpus.items()}

    def _update(self, view: JobView, *, counters: bool = False) -> bool:
        source = self._gpus.source
        if source is None:
            return False
        try:
            self._gpus.members[id(self)] = view.usage.members.keys()
            gpus, names = self._allocated(view, source)
            self._gpus.wanted[id(self)] = (
                None if names is None else frozenset([*(gpu.key for gpu in gpus), *self._job_gpus])
            )
            # The first reading of a GPU is what the job counts from, so its counters are read.
            new = not self._started or any(gpu.key not in self._job_gpus for gpu in gpus)
            self._started = True
            self._gpus.look(source, counters=counters or new)
            self._assign(view, source, gpus, names)
            self._take(view)
            if self._job_gpus:
                # The command runs in the background, and its output is used in a later round.
                self._gpus.printed.update()
        except (OSError, ValueError) as error:
            self.errors.add("GPU", error)
            return False
        return bool(self._job_gpus)

    def _allocated(
        self, view: JobView, source: GpuSource
    ) -> tuple[list[Gpu], tuple[str, ...] | None]:
        """The GPUs that Slurm or the prolog announced, and their names; None if nobody did."""
        names = view.gpus if view.gpus is not None else self._from_environment(view)
        if names is None:
            return [], None
        gpus, self._unknown = self._gpus.find(source, names)
        for name in self._unknown:
            self.errors.add(f"GPU {name}", "it is allocated to the job but not present on the node")
        return gpus, names

    def _assign(
        self, view: JobView, source: GpuSource, gpus: list[Gpu], names: tuple[str, ...] | None
    ) -> None:
        """Assign GPUs as they were announced, else those that the job's processes use."""
        # Imported here: a node without a GPU pays no memory for it.
        from jobsight.agent.samplers.gpu.meter import GpuState, JobGpu

        meters = self._gpus.meters
        if names is None:
            members = view.usage.members
            gpus = [
                gpu
                for gpu in source.gpus
                if gpu.key in meters
                and any(pid in members for pid in meters[gpu.key].process_memory)
            ]
            self._estimated = self._estimated or bool(gpus)
        else:
            self._estimated = False
        for gpu in gpus:
            meter = meters.get(gpu.key)
            if gpu.key in self._job_gpus or meter is None or meter.time is None:
                continue
            origin = "its processes" if names is None else "its allocation"
            logger.debug("job %d: GPU %s by %s", view.sighting.job_id, gpu.key, origin)
            # A process has used the GPU since the reading before the one that shows it.
            since = self._before.get(gpu.key) if names is None else None
            wall = self.node.wall()
            if since is None:
                since = GpuState.of(meter)
            else:
                wall -= self.node.clock() - since.time
            self._job_gpus[gpu.key] = JobGpu(meter, since, wall)
        self._before = (
            {}
            if names is not None
            else {
                key: GpuState.of(meter)
                for key, meter in meters.items()
                if key not in self._job_gpus
            }
        )

    def _take(self, view: JobView) -> None:
        """Add what the GPUs did since the last round, and attribute it to executables and steps."""
        usage = view.usage
        members = usage.members
        memory: dict[int, int] = {}
        for held in self._job_gpus.values():
            present = held.meter.process_memory
            self._note_processes(view, present.keys())
            # The PID of a process that has ended may be that of another job's by now.
            ended = self._seen.keys() - members.keys()
            own = members.keys() | (ended - self._gpus.holders(ended))
            foreign = self._foreign(present.keys() - own)
            before = held.held_time
            held.update(self.node.wall(), self.node.clock(), own, foreign)
            if held.held_time > before or not held.gauges["memory_used"].seconds:
                held.add_gauges()
            for pid, grown in held.process_growth.items():
                if pid in self._seen:
                    name, step = self._seen[pid]
                    usage.row_for(name).gpu_time += round(grown)
                    usage.step_gpu_time[step] += round(grown)
            held.process_growth = {}
            for pid in present.keys() & self._seen.keys() & own:
                memory[pid] = memory.get(pid, 0) + (present[pid] or 0)
        by_step: dict[str, int] = {}
        for pid, size in memory.items():
            name, step = self._seen[pid]
            row = usage.row_for(name)
            row.gpu_memory_peak = max(row.gpu_memory_peak, size)
            by_step[step] = by_step.get(step, 0) + size
        for step, size in by_step.items():
            usage.step_gpu_memory[step] = max(usage.step_gpu_memory.get(step, 0), size)

    def _note_processes(self, view: JobView, present: Set[int]) -> None:
        """Keep executable and step of the job's processes on a GPU: their time is known later."""
        members = view.usage.members
        for pid in present & members.keys():
            process = members[pid]
            if process.name is not None:
                self._seen.pop(pid, None)
                self._seen[pid] = process.name, process.step
                # It is known to be on a GPU before its time is.
                view.usage.step_gpu_time[process.step] += 0
        while len(self._seen) > _MAX_ENDED + len(members):
            del self._seen[next(iter(self._seen))]

    def _foreign(self, pids: Collection[int]) -> list[int]:
        """The processes that are not the job's: those of other jobs, and others that are alive. One
        that has ended and that nobody knows may have been the job's own."""
        others = self._gpus.holders(pids)
        return [pid for pid in pids if pid in others or os.path.exists(self.node.proc / str(pid))]

    def _from_environment(self, view: JobView) -> tuple[str, ...] | None:
        """The prolog's variables, which the collector of a single job inherits."""
        environment = self.node.environment
        if environment.get("SLURM_JOB_ID") != str(view.sighting.job_id):
            return None
        text = environment.get(self._variable)
        return None if text is None else parse_gpu_list(text)

    def columns(self, view: JobView) -> Row:
        if not self._update(view):
            return {}
        row: Row = {
            "gpu.held": len(self._job_gpus),
            "gpu.idle": sum(held.idle for held in self._job_gpus.values()),
        }
        for key, held in self._job_gpus.items():
            totals = held.totals_at(view.row_time, self.node.freshness)
            row |= {f"gpu.{key}.{metric}": value for metric, value in _row(held, totals).items()}
        return row

    def gpu_uses(self, view: JobView, *, final: bool) -> list[GpuUse]:
        """The figures of each GPU of the job for the batch."""
        self._update(view, counters=final)
        return [held.use() for held in list(self._job_gpus.values())[:_MAX_GPUS]]

    def document(self, view: JobView) -> Document | None:
        if not self._update(view):
            return None
        return {key: self._entry(held) for key, held in self._job_gpus.items()}

    def _entry(self, held: JobGpu) -> Document:
        """Values as nvidia-smi prints them; what the GPU does not provide is left out."""
        entry: Document = {}
        printed = self._gpus.printed.values(held.gpu.uuid)
        for name in self._metrics:
            if name in printed:
                entry[printed[name].name.replace(".", "_")] = printed[name].text
            if name not in _PRINTED:
                continue
            field, divisor, digits = _PRINTED[name]
            value = getattr(held.reading, field)
            if value is not None:
                entry[name.replace(".", "_")] = f"{value / divisor:.{digits}f}"
        for name in self._averages:
            if name not in _PRINTED:
                average = held.printed_average(name, printed)
                if average is not None:
                    entry[f"{name.replace('.', '_')}_average"] = average
                continue
            field, divisor, _ = _PRINTED[name]
            average = held.gauges[field].average
            if average is not None:
                entry[f"{name.replace('.', '_')}_average"] = average / divisor
        entry["elapsed_time"] = (held.time - held.first_time) / 1e9
        return entry

    def final(self, view: JobView) -> Document:
        self._update(view, counters=True)
        document: Document = {}
        for key, held in self._job_gpus.items():
            entry = self._entry(held)
            for field in ("utilization", "memory_used", "power", "temperature"):
                highest = held.gauges[field].maximum
                if highest is not None:
                    entry[f"{field}_max"] = highest / 1000 if field == "power" else int(highest)
            if "energy" in held.totals:
                entry["energy"] = held.totals["energy"] / 1e6
            if held.gauges["utilization"].last is not None:
                entry["idle"] = held.never_used
            entry |= {"uuid": held.gpu.uuid, "name": held.gpu.name}
            document[key] = entry
        return document

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        if self._unknown:
            reason = f"not present on the node: GPU {', '.join(self._unknown)}"
            return {"gpu": Coverage(quality="failed", reason=reason)}
        if not self._job_gpus:
            if view.gpus:
                reason = self._gpus.unavailable or "the GPUs could not be read"
                return {"gpu": Coverage(quality="missing", reason=reason)}
            return {}
        coverage = {"gpu": Coverage(quality="exact")}
        if self._estimated:
            reason = "the allocated GPUs are not known; those that the job's processes used"
            coverage["gpu"] = Coverage(quality="estimate", reason=reason)
        if self._seen:
            reason = "divided among the processes that were seen at each sample"
            coverage["gpu_programs"] = Coverage(quality="estimate", reason=reason)
        return coverage

    def close(self) -> None:
        self._gpus.wanted.pop(id(self), None)
        self._gpus.members.pop(id(self), None)
