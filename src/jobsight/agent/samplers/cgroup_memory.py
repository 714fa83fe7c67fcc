"""sams.sampler.SlurmCGroup and SlurmCGroup2: the memory and cores of the job's cgroup.

Both names say the same on both versions of cgroups: usage is what is charged, the limit is the
limit that kills, the maximum is the kernel's high-water mark, swap is swap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.probes.cgroup_files import CgroupFiles, MemoryPeaks, MemoryReading
from jobsight.agent.samplers.base import JobSampler, averaged
from jobsight.agent.samplers.cpu import CoreList
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.readings import Gauge
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
    """Memory by kind, with limit, peak and the kernel's kills."""

    name = "sams.sampler.SlurmCGroup"

    def __init__(
        self,
        *,
        cgroup_base: str | None = None,
        metrics_to_average: Sequence[str] = ("memory_usage",),
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        # ``cgroup_base`` stands in the files of sites; the engine has found the folders already.
        del cgroup_base
        self._averages = averaged(self.name, metrics_to_average, _FIELDS)
        self._gauges = {name: Gauge() for name in _FIELDS}
        self._cores = CoreList()
        self._core_count: int | None = None
        self._marks = MemoryPeaks(None, None, None, None)
        self._kernel: CgroupFiles | None = None

    def columns(self, view: JobView) -> Row:
        if view.counters is None:
            return {}
        marks = self._read_marks(view)
        kernel = self._kernel_memory(view)
        row: Row = {
            "memory.limit": _or_missing(marks.limit if marks else None),
            "memory.peak": _or_missing(marks.peak if marks else None),
            "memory.oom_kills": _or_missing(marks.oom_kills if marks else None),
            "memory.kernel": _or_missing(kernel),
        }
        # Without a limit, or on a kernel without the file, there is no curve at all.
        known = {"memory.limit": self._marks.limit, "memory.peak": self._marks.peak}
        return {name: value for name, value in row.items() if known.get(name, 0) is not None}

    def _read_marks(self, view: JobView) -> MemoryPeaks | None:
        try:
            marks = view.counters.memory_peaks() if view.counters else None
        except (OSError, ValueError) as error:
            self.errors.note("memory marks", error)
            return None
        if marks is not None:
            old = self._marks
            # A mark that was known stays known when a later reading leaves it out.
            kept = (new if new is not None else was for new, was in zip(marks, old, strict=True))
            self._marks = MemoryPeaks(*kept)
        return marks

    def _kernel_memory(self, view: JobView) -> int | None:
        """Pages of the kernel that are charged to the job."""
        folders = view.counters.directories if view.counters else {}
        folder = folders.get("memory") or folders.get("unified")
        if folder is None:
            return None
        try:
            if self._kernel is None or self._kernel.directory != folder:
                self._close_kernel()
                self._kernel = CgroupFiles(folder)
            if "memory" in folders:
                return self._kernel.number("memory.kmem.usage_in_bytes")
            return self._kernel.table("memory.stat").get(b"kernel")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.errors.note("kernel memory", error)
            return None

    def _close_kernel(self) -> None:
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def document(self, view: JobView) -> Document | None:
        return self._document() if self._look(view) else None

    def _look(self, view: JobView) -> bool:
        """Take one reading in; False where it failed."""
        if view.counters is None:
            return False
        self._look_at_cores(view)
        self._read_marks(view)
        try:
            memory = view.counters.memory()
        except (OSError, ValueError) as error:
            self.errors.note("memory", error)
            return False
        if memory is not None:
            self._add(memory)
        return memory is not None or self._core_count is not None

    def _look_at_cores(self, view: JobView) -> None:
        try:
            cores = self._cores.read(view)
        except (OSError, ValueError) as error:
            self.errors.note("cores", error)
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
        found: Document = {}
        if self._core_count is not None:
            found["cpus"] = self._core_count
        peak = self._marks.peak
        if peak is None:
            # Kernels before 5.19 keep no mark on v2; the highest reading is the next best.
            highest = self._gauges["memory_usage"].maximum
            peak = int(highest) if highest is not None else None
        values = {name: gauge.last for name, gauge in self._gauges.items()}
        values |= {
            "memory_limit": self._marks.limit,
            "memory_max_usage": peak,
            "memory_oom_kills": self._marks.oom_kills,
        }
        found |= {name: str(int(value)) for name, value in values.items() if value is not None}
        for name in self._averages:
            average = self._gauges[name].average
            if average is not None:
                found[f"{name}_average"] = average
        return found

    def final(self, view: JobView) -> Document:
        self._look(view)
        found = self._document()
        for name in ("memory_used", "memory_swap"):
            highest = self._gauges[name].maximum
            if highest is not None:
                found[f"{name}_max"] = str(int(highest))
        return found

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        """The engine speaks for the group "memory"; only the substitute of the peak is ours."""
        if self._marks.peak is None and self._gauges["memory_usage"].maximum is not None:
            reason = "this kernel keeps no high-water mark; the highest sample stands for it"
            return {"memory peak": Coverage(quality="estimate", reason=reason)}
        return {}

    def close(self) -> None:
        self._cores.close()
        self._close_kernel()


class SlurmCGroup2(SlurmCGroup):
    """The same under the name that sites on cgroup v2 have in their files."""

    name = "sams.sampler.SlurmCGroup2"


def _or_missing(value: int | None) -> int:
    return MISSING if value is None else value
