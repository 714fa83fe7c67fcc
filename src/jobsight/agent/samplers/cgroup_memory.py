"""sams.sampler.SlurmCGroup and SlurmCGroup2: memory and cores of the job's cgroup.

Both names work with both cgroup versions and mean the same: usage is what is charged, the limit
is the hard limit, the maximum is the kernel's high-water mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Unpack

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.probes.cgroup_files import MemoryPeaks, MemoryReading
from jobsight.agent.samplers.base import JobSampler, SamplerOptions, averaged_metrics
from jobsight.agent.samplers.cpu import CoreList
from jobsight.agent.samplers.readings import CurrentCgroup, Gauge
from jobsight.model import MISSING, Coverage

_FIELDS: Final = (
    "memory_usage",
    "memory_used",
    "memory_anonymous",
    "memory_file",
    "memory_shared",
    "memory_swap",
)


class SlurmCGroup(JobSampler):
    """Memory by kind, with limit, peak and OOM kills."""

    name = "sams.sampler.SlurmCGroup"

    def __init__(
        self,
        *,
        cgroup_base: str | None = None,
        metrics_to_average: Sequence[str] = ("memory_usage",),
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        # Accepted because files of SAMS have it; the engine knows the directories.
        del cgroup_base
        self._averages = averaged_metrics(self.name, metrics_to_average, _FIELDS)
        self._gauges = {name: Gauge() for name in _FIELDS}
        self._cores = CoreList()
        self._core_count: int | None = None
        self._peaks = MemoryPeaks(None, None, None, None)
        self._memory = CurrentCgroup()

    def columns(self, view: JobView) -> Row:
        if view.counters is None:
            return {}
        peaks = self._read_peaks(view)
        kernel = self._kernel_memory(view)
        row: Row = {
            "memory.limit": _or_missing(peaks.limit if peaks else None),
            "memory.peak": _or_missing(peaks.peak if peaks else None),
            "memory.oom_kills": _or_missing(peaks.oom_kills if peaks else None),
            "memory.kernel": _or_missing(kernel),
        }
        # Without a limit, or on a kernel without the file, there is no time series at all.
        optional = {"memory.limit": self._peaks.limit, "memory.peak": self._peaks.peak}
        return {name: value for name, value in row.items() if optional.get(name, 0) is not None}

    def _read_peaks(self, view: JobView) -> MemoryPeaks | None:
        try:
            peaks = view.counters.memory_peaks() if view.counters else None
        except (OSError, ValueError) as error:
            self.errors.add("memory peaks", error)
            return None
        if peaks is not None:
            # A value that was known stays known when a later reading lacks it.
            pairs = zip(peaks, self._peaks, strict=True)
            self._peaks = MemoryPeaks(*(old if new is None else new for new, old in pairs))
        return peaks

    def _kernel_memory(self, view: JobView) -> int | None:
        """Kernel memory that is charged to the job."""
        directories = view.counters.directories if view.counters else {}
        directory = directories.get("memory") or directories.get("unified")
        if directory is None:
            return None
        try:
            files = self._memory.files(directory)
            if "memory" in directories:
                return files.number("memory.kmem.usage_in_bytes")
            return files.table("memory.stat").get(b"kernel")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.errors.add("kernel memory", error)
            return None

    def document(self, view: JobView) -> Document | None:
        return self._document() if self._update(view) else None

    def _update(self, view: JobView) -> bool:
        """Add one reading; False if it failed."""
        if view.counters is None:
            return False
        self._update_cores(view)
        self._read_peaks(view)
        try:
            memory = view.counters.memory()
        except (OSError, ValueError) as error:
            self.errors.add("memory", error)
            return False
        if memory is not None:
            self._add(memory)
        return memory is not None or self._core_count is not None

    def _update_cores(self, view: JobView) -> None:
        try:
            cores = self._cores.read(view)
        except (OSError, ValueError) as error:
            self.errors.add("cores", error)
            return
        if cores is not None:
            self._core_count = len(cores)

    def _add(self, memory: MemoryReading) -> None:
        now = self.node.clock()
        for name, value in (
            ("memory_usage", memory.current),
            ("memory_used", memory.used),
            ("memory_anonymous", memory.anonymous),
            ("memory_file", memory.file),
            ("memory_shared", memory.shared),
            ("memory_swap", memory.swap),
        ):
            self._gauges[name].add(now, value)

    def _document(self) -> Document:
        document: Document = {}
        if self._core_count is not None:
            document["cpus"] = self._core_count
        peak = self._peaks.peak
        if peak is None:
            # Kernels before 5.19 have no high-water mark on v2; use the highest reading instead.
            highest = self._gauges["memory_usage"].maximum
            peak = int(highest) if highest is not None else None
        values = {name: gauge.last for name, gauge in self._gauges.items()}
        values |= {
            "memory_limit": self._peaks.limit,
            "memory_max_usage": peak,
            "memory_oom_kills": self._peaks.oom_kills,
        }
        document |= {name: str(int(value)) for name, value in values.items() if value is not None}
        for name in self._averages:
            average = self._gauges[name].average
            if average is not None:
                document[f"{name}_average"] = average
        return document

    def final(self, view: JobView) -> Document:
        self._update(view)
        document = self._document()
        for name in ("memory_used", "memory_swap"):
            highest = self._gauges[name].maximum
            if highest is not None:
                document[f"{name}_max"] = str(int(highest))
        return document

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        """Only for a substituted peak; the engine reports the group "memory"."""
        if self._peaks.peak is None and self._gauges["memory_usage"].maximum is not None:
            reason = "this kernel has no high-water mark; the highest sample is used instead"
            return {"memory peak": Coverage(quality="estimate", reason=reason)}
        return {}

    def close(self) -> None:
        self._cores.close()
        self._memory.close()


class SlurmCGroup2(SlurmCGroup):
    """The same under the name that SAMS uses for cgroup v2."""

    name = "sams.sampler.SlurmCGroup2"


def _or_missing(value: int | None) -> int:
    return MISSING if value is None else value
