"""The GPUs of the node, shared by all its jobs.

:class:`NodeGpus` opens the source of the readings, and reads each GPU that a job holds once in a
sampling round, however many jobs there are. The calls of a driver may hang, so they are made in a
thread; the loop of the agent waits for them for a moment only.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from jobsight.agent.samplers.gpu.nvidia_smi import NvidiaSmi, PrintedMetrics
from jobsight.agent.samplers.gpu.source import (
    NO_ANSWER,
    Gpu,
    GpuProcess,
    GpuReading,
    GpuSource,
)
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.readings import Background, describe
from jobsight.model import GPU_FIGURES, SECOND

if TYPE_CHECKING:
    from jobsight.agent.samplers.gpu.meter import GpuMeter

logger = logging.getLogger(__name__)

#: A driver may be loaded later than the agent is started.
_OPEN_INTERVAL: Final = 300 * SECOND
#: MIG instances may change while the agent runs, and a GPU that was lost may come back.
_REFRESH_INTERVAL: Final = 60 * SECOND
#: Readings that take milliseconds: the driver keeps utilization samples for 14 seconds, and its
#: counters for ever. Between two readings of the energy counter, power is integrated.
_SAMPLES_INTERVAL: Final = 10 * SECOND
_COUNTERS_INTERVAL: Final = 60 * SECOND
#: How long the loop waits for the driver: when it is opened, at the end of a job, in a round. Later
#: results are taken in the next round.
_OPEN_TIMEOUT: Final = 0.5
_FINAL_TIMEOUT: Final = 0.5
_ROUND_TIMEOUT: Final = 0.05
#: A driver that has not answered for this long is reported as such.
_SILENCE: Final = 5 * SECOND
_RANGE: Final = re.compile(r"(\d{1,4})-(\d{1,4})")
#: Kernel driver -> the module of its source, in the order in which they are tried.
_DRM_DRIVERS: Final = ("amdgpu", "xe", "i915")


class _Look(NamedTuple):
    """The readings of one sampling round."""

    #: Monotonic time and Unix time of each.
    readings: list[tuple[Gpu, int, int, GpuReading]]
    processes: list[GpuProcess]
    #: Kind of a slow reading and GPU -> when it was begun.
    slow: dict[tuple[str, str], int]


class NodeGpus:
    """Opens the source of readings once. Without a GPU each round costs one read of the clock."""

    def __init__(self, node: Node, command: str, timeout: float) -> None:
        self._node = node
        self._command = command
        self._timeout = timeout
        self._source: GpuSource | None = None
        #: Metrics that are in no reading; the command runs only if some are requested.
        self.printed = PrintedMetrics(node, command, timeout, node.errors)
        #: Why there is no source.
        self.unavailable = ""
        #: By key, of all GPUs that were read.
        self.meters: dict[str, GpuMeter] = {}
        #: The sampler of a job -> the keys of its GPUs; None: those that its processes use, which
        #: may be any.
        self.wanted: dict[int, frozenset[str] | None] = {}
        #: The sampler of a job -> the processes of the job.
        self.members: dict[int, Collection[int]] = {}
        self._opening: Background[GpuSource] = Background("gpu open", _OPEN_TIMEOUT)
        self._looking: Background[_Look] = Background("gpu", _ROUND_TIMEOUT)
        self._looking_since: int | None = None
        self._tried_at: int | None = None
        self._refreshed_at = node.clock()
        self._refresh_due = False
        #: Kind of a slow reading and GPU -> when it was last begun.
        self._slow_read: dict[tuple[str, str], int] = {}

    @property
    def source(self) -> GpuSource | None:
        now = self._node.clock()
        due = self._tried_at is None or now - self._tried_at >= _OPEN_INTERVAL
        if self._source is None and (due or self._opening.busy or self.unavailable == NO_ANSWER):
            self._tried_at = now
            self._source = self._open()
        return self._source

    def wait_for_source(self, seconds: float) -> GpuSource | None:
        """The source, for a command that can wait: a driver that nobody uses starts slowly."""
        self._opening.timeout = seconds
        return self.source

    def use(self, source: GpuSource) -> None:
        """Use another source than this machine's."""
        self._source = source

    def _open(self) -> GpuSource | None:
        node = self._node
        driver_files = (node.dev / "nvidiactl", node.proc / "driver" / "nvidia" / "version")
        if not any(map(os.path.exists, driver_files)):
            return self._open_drm()
        try:
            source = self._opening.run(self._open_nvml)
            if source is None:
                self._failed_to_open(NO_ANSWER)
                return None
            logger.debug("NVML is used for %d GPUs", len(source.gpus))
            self.unavailable = ""
            return source
        except Exception as error:
            # ImportError, or an exception class of the binding, which cannot be named without it.
            node.errors.add("NVML", f"{describe(error)}; {self._command} is used instead")
        if os.access(self._command, os.X_OK):
            return NvidiaSmi(node, self._command, self._timeout, node.errors)
        self._failed_to_open(f"neither NVML nor {self._command} can be used")
        return None

    def _open_nvml(self) -> GpuSource:
        # Imported here: a node without a GPU pays no memory for the binding.
        import pynvml

        from jobsight.agent.samplers.gpu.nvml import Nvml

        return Nvml(pynvml, self._node.errors, self._node.clock)

    def _open_drm(self) -> GpuSource | None:
        """AMD's and Intel's GPUs, from the files of their kernel drivers."""
        drivers = self._node.sys / "bus" / "pci" / "drivers"
        if any(os.path.exists(drivers / name) for name in _DRM_DRIVERS):
            from jobsight.agent.samplers.gpu.drm import Drm

            source = Drm(self._node)
            if source.gpus:
                self.unavailable = ""
                return source
        self.unavailable = "this node has no GPU driver"
        logger.info("%s; GPUs are not measured", self.unavailable)
        return None

    def _failed_to_open(self, reason: str) -> None:
        self.unavailable = reason
        self._node.errors.add("GPU", reason)

    # Readings.

    def look(self, source: GpuSource, *, counters: bool = False) -> None:
        """Read every GPU that a job holds, unless it was read in this round. With ``counters``,
        those that take milliseconds are read as well, and nothing is taken from this round."""
        now = self._node.clock()
        for key in self.meters.keys() - {gpu.key for gpu in source.gpus}:
            self._lose(key)
        due = [gpu for gpu in self._wanted_gpus(source) if self._is_due(gpu, now, counters)]
        if not due and not self._refresh_due and not self._looking.busy:
            return
        sampled = {gpu.key for gpu in due if counters or self._slow_due("samples", gpu, now)}
        counted = {gpu.key for gpu in due if counters or self._slow_due("counters", gpu, now)}
        candidates: frozenset[int] = frozenset().union(*self.members.values())

        def work() -> _Look:
            if self._refresh_due:
                self._refresh_due = False
                source.refresh()
            clock, wall = self._node.clock, self._node.wall
            # Before the readings: a process that ends meanwhile still has its time.
            processes = source.processes(candidates)
            readings = [
                (
                    gpu,
                    clock(),
                    wall(),
                    source.read(gpu, samples=gpu.key in sampled, counters=gpu.key in counted),
                )
                for gpu in due
            ]
            slow = {("samples", key): now for key in sampled}
            return _Look(readings, processes, slow | {("counters", key): now for key in counted})

        if not source.blocks:
            self._apply(work())
            return
        if self._looking_since is None:
            self._looking_since = now
        timeout = _FINAL_TIMEOUT if counters else None
        try:
            look = self._looking.run(work, timeout)
            if look is not None and self._looking_since < now:
                # It was begun in an earlier round: this one needs a reading of its own.
                self._apply(look)
                self._looking_since = now
                look = self._looking.run(work, timeout)
        except Exception:
            self._looking_since = None
            raise
        if look is not None:
            self._apply(look)
        elif now - self._looking_since >= _SILENCE:
            for meter in self.meters.values():
                meter.missing |= dict.fromkeys(GPU_FIGURES, NO_ANSWER)

    def _wanted_gpus(self, source: GpuSource) -> list[Gpu]:
        wanted = self.wanted.values()
        if any(keys is None for keys in wanted):
            return list(source.gpus)
        keys = frozenset().union(*(keys for keys in wanted if keys is not None))
        return [gpu for gpu in source.gpus if gpu.key in keys]

    def _is_due(self, gpu: Gpu, now: int, counters: bool) -> bool:
        meter = self.meters.get(gpu.key)
        if meter is None or meter.time is None:
            return True
        return now - meter.time >= (1 if counters else self._node.freshness)

    def _slow_due(self, kind: str, gpu: Gpu, now: int) -> bool:
        interval = _SAMPLES_INTERVAL if kind == "samples" else _COUNTERS_INTERVAL
        last = self._slow_read.get((kind, gpu.key))
        return last is None or now - last >= interval

    def _apply(self, look: _Look) -> None:
        # Imported here: a node without a GPU pays no memory for it.
        from jobsight.agent.samplers.gpu.meter import GpuMeter

        self._looking_since = None
        self._slow_read |= look.slow
        for gpu, time, wall, reading in look.readings:
            meter = self.meters.get(gpu.key)
            if meter is None or meter.gpu.uuid != gpu.uuid:
                meter = GpuMeter(gpu)
                self._lose(gpu.key)
                self.meters[gpu.key] = meter
            if reading.failure:
                self._plan_refresh()
            meter.update(time, wall, reading, [one for one in look.processes if one.key == gpu.key])

    def _lose(self, key: str) -> None:
        """The driver does not list a GPU any more: it has fallen off the bus, or MIG instances
        were made or removed."""
        meter = self.meters.get(key)
        if meter is not None:
            meter.reading = GpuReading(failure="the driver no longer lists the GPU")
            meter.missing = dict.fromkeys(GPU_FIGURES, meter.reading.failure)

    def _plan_refresh(self) -> None:
        now = self._node.clock()
        if now - self._refreshed_at >= _REFRESH_INTERVAL:
            self._refreshed_at = now
            self._refresh_due = True

    def holders(self, pids: Iterable[int]) -> set[int]:
        """The processes among these that belong to a job."""
        members = self.members.values()
        return {pid for pid in pids if any(pid in one for one in members)}

    def find(self, source: GpuSource, names: Iterable[str]) -> tuple[list[Gpu], list[str]]:
        """The GPUs that these names refer to, and the names that refer to none."""
        gpus, unknown = _find(source.gpus, names)
        if unknown:
            self._plan_refresh()
        return gpus, unknown

    def close(self) -> None:
        if self._source is not None and not self._looking.busy:
            self._source.close()


def _find(present: tuple[Gpu, ...], names: Iterable[str]) -> tuple[list[Gpu], list[str]]:
    gpus: dict[str, Gpu] = {}
    unknown: list[str] = []
    for name in names:
        gpu = next((gpu for gpu in present if has_name(gpu, name)), None)
        if gpu is None:
            unknown.append(name)
        else:
            gpus[gpu.key] = gpu
    return list(gpus.values()), unknown


def has_name(gpu: Gpu, name: str) -> bool:
    """Whether a device number, UUID or MIG name refers to this GPU."""
    if name.isascii() and name.isdigit():
        number = gpu.minor if gpu.minor is not None else gpu.index
        return gpu.parent is None and number == int(name)
    if name.startswith("MIG-GPU-"):
        # Drivers before 470 name an instance by its GPU and its two instance ids.
        return gpu.uuid == name
    if name.startswith(("GPU-", "MIG-")):
        # A prefix is enough, as in CUDA_VISIBLE_DEVICES.
        return len(name) >= 8 and gpu.uuid.startswith(name)
    return gpu.key == name


def parse_gpu_list(text: str) -> tuple[str, ...]:
    """Parse a list of Slurm: ``0,10``, ``0-3``, UUIDs."""
    names: list[str] = []
    for part in text.split(","):
        part = part.strip()
        match = _RANGE.fullmatch(part)
        if match:
            names += map(str, range(int(match[1]), int(match[2]) + 1))
        elif part:
            names.append(part)
    return tuple(names)
