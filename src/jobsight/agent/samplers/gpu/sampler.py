"""sams.sampler.NvidiaSMI: utilization, memory, power and clocks of the job's GPUs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Unpack

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers.base import JobSampler, SamplerOptions, duration, text_list
from jobsight.agent.samplers.gpu.devices import NodeGpus, parse_gpu_list
from jobsight.agent.samplers.gpu.nvidia_smi import Printed, parse_number
from jobsight.agent.samplers.gpu.nvml import Gpu, GpuReading, GpuSource
from jobsight.agent.samplers.readings import Gauge
from jobsight.model import MISSING, Coverage

logger = logging.getLogger(__name__)

#: Metric -> field of :class:`GpuReading`, and the factor to the metric's unit.
_COLUMNS: Final = {
    "utilization": ("utilization", 1),
    "memory_utilization": ("memory_utilization", 1),
    "memory_used": ("memory_used", 1),
    "power": ("power", 1000),
    "temperature": ("temperature", 1),
    "clock": ("clock_sm", 1_000_000),
}
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


def _names(where: str, key: str, value: object) -> tuple[str, ...]:
    return tuple(_ALIASES.get(name, name) for name in text_list(where, key, value))


class _JobGpu:
    """One GPU since it was assigned to the job."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.gauges = {field: Gauge() for field in [row[0] for row in _PRINTED.values()]}
        self.printed_gauges: dict[str, Gauge] = {}
        self.reading = GpuReading()
        self.first_time: int | None = None
        self.time = 0

    def add(self, time: int, reading: GpuReading) -> None:
        if self.first_time is None:
            self.first_time = time
        elif time <= self.time:
            return
        self.time, self.reading = time, reading
        for field, gauge in self.gauges.items():
            gauge.add(time, getattr(reading, field))

    def printed_average(self, name: str, printed: dict[str, Printed]) -> float | None:
        """The average of a metric that only nvidia-smi has, with its value now."""
        gauge = self.printed_gauges.setdefault(name, Gauge())
        if name in printed:
            gauge.add(self.time, parse_number(printed[name].text))
        return gauge.average

    @property
    def idle(self) -> bool:
        return self.reading.utilization == 0

    @property
    def never_used(self) -> bool:
        return self.gauges["utilization"].maximum == 0


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
        self._job_gpus: dict[str, _JobGpu] = {}
        self._estimated = False
        self._unknown: list[str] = []

    @property
    def gpus(self) -> dict[str, bool]:
        """The keys of the job's GPUs, and whether each has ever been used."""
        return {key: not held.never_used for key, held in self._job_gpus.items()}

    @property
    def readings(self) -> dict[str, GpuReading]:
        """The last reading of each GPU of the job."""
        return {key: held.reading for key, held in self._job_gpus.items()}

    def _update(self, view: JobView) -> bool:
        source = self._gpus.source
        if source is None:
            return False
        try:
            self._assign(view, source)
            for held in self._job_gpus.values():
                held.add(*self._gpus.read(source, held.gpu))
            if self._job_gpus:
                # The command runs in the background, and its output is used in a later round.
                self._gpus.printed.update()
        except (OSError, ValueError) as error:
            self.errors.add("GPU", error)
            return False
        return bool(self._job_gpus)

    def _assign(self, view: JobView, source: GpuSource) -> None:
        """Assign GPUs as Slurm or the prolog announced them, else those that the processes use."""
        names = view.gpus if view.gpus is not None else self._from_environment(view)
        if names is None:
            keys = self._gpus.of_processes(source, view.usage.members)
            gpus = [gpu for gpu in source.gpus if gpu.key in keys]
            self._estimated = self._estimated or bool(gpus)
        else:
            gpus, self._unknown = self._gpus.find(source, names)
            self._estimated = False
            for name in self._unknown:
                self.errors.add(
                    f"GPU {name}", "it is allocated to the job but not present on the node"
                )
        for gpu in gpus:
            if gpu.key not in self._job_gpus:
                origin = "its processes" if names is None else "its allocation"
                logger.debug("job %d: GPU %s by %s", view.sighting.job_id, gpu.key, origin)
                self._job_gpus[gpu.key] = _JobGpu(gpu)

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
            for metric, (field, factor) in _COLUMNS.items():
                value = getattr(held.reading, field)
                if value is not None:
                    row[f"gpu.{key}.{metric}"] = value * factor
                elif held.gauges[field].last is not None:
                    row[f"gpu.{key}.{metric}"] = MISSING
            power = held.gauges["power"]
            if power.last is not None:
                # Milliwatts times seconds are millijoules.
                row[f"gpu.{key}.energy"] = round(power.integral * 1000)
        return row

    def document(self, view: JobView) -> Document | None:
        if not self._update(view):
            return None
        return {key: self._entry(held) for key, held in self._job_gpus.items()}

    def _entry(self, held: _JobGpu) -> Document:
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
        entry["elapsed_time"] = (held.time - (held.first_time or 0)) / 1e9
        return entry

    def final(self, view: JobView) -> Document:
        self._update(view)
        document: Document = {}
        for key, held in self._job_gpus.items():
            entry = self._entry(held)
            for field in ("utilization", "memory_used", "power", "temperature"):
                highest = held.gauges[field].maximum
                if highest is not None:
                    entry[f"{field}_max"] = highest / 1000 if field == "power" else int(highest)
            if held.gauges["power"].last is not None:
                entry["energy"] = held.gauges["power"].integral / 1000
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
        if self._estimated:
            reason = "the allocated GPUs are not known; those that the job's processes used"
            return {"gpu": Coverage(quality="estimate", reason=reason)}
        return {"gpu": Coverage(quality="exact")}
