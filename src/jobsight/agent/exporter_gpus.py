"""The names of nvidia_smi_exporter, which petricore's pages read: by node and GPU, not by job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jobsight.agent.exporter_job import JobSeries
from jobsight.agent.samplers.gpu import NvidiaSMI
from jobsight.agent.samplers.nvml import GpuReading
from jobsight.agent.view import Sampler
from jobsight.prometheus.exposition import line
from jobsight.prometheus.names import MEBIBYTE

#: Name -> field of a reading and what it is divided by.
_FIELDS: Final = {
    "utilization_gpu": ("utilization", 1),
    "utilization_memory": ("memory_utilization", 1),
    "temperature_gpu": ("temperature", 1),
    "memory_total": ("memory_total", MEBIBYTE),
    "memory_used": ("memory_used", MEBIBYTE),
}


def readings_of(samplers: Iterable[Sampler]) -> dict[str, GpuReading]:
    """The last reading of each GPU of a job."""
    found = next((one for one in samplers if isinstance(one, NvidiaSMI)), None)
    return found.readings if found is not None else {}


def gpu_lines(jobs: Iterable[JobSeries]) -> dict[str, list[str]]:
    """The samples by name; a GPU that two jobs share is there once."""
    readings = {(job.key[0], gpu): one for job in jobs for gpu, one in job.gpus.items()}
    lines: dict[str, list[str]] = {}
    for (node, gpu), reading in sorted(readings.items()):
        values = {
            name: getattr(reading, field) / divisor
            for name, (field, divisor) in _FIELDS.items()
            if getattr(reading, field) is not None
        }
        if reading.memory_total is not None and reading.memory_used is not None:
            values["memory_free"] = (reading.memory_total - reading.memory_used) / MEBIBYTE
        for name, value in values.items():
            text = line(name, {"instance": node, "gpu": gpu}, value)
            lines.setdefault(name, []).append(text)
    return lines
