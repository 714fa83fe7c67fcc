"""The GPUs of the node, shared by all its jobs."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from typing import Final

from jobsight.agent.samplers.gpu.nvidia_smi import NvidiaSmi, PrintedMetrics
from jobsight.agent.samplers.gpu.nvml import Gpu, GpuReading, GpuSource, Nvml
from jobsight.agent.samplers.node import Node, Reading
from jobsight.agent.samplers.readings import describe
from jobsight.model import SECOND

logger = logging.getLogger(__name__)

#: A driver may be loaded later than the agent is started.
_OPEN_INTERVAL: Final = 300 * SECOND
#: MIG instances may change while the agent runs.
_REFRESH_INTERVAL: Final = 60 * SECOND
_PROCESSES_FRESHNESS: Final = 2 * SECOND
_RANGE: Final = re.compile(r"(\d{1,4})-(\d{1,4})")


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
        self._tried_at: int | None = None
        self._refreshed_at = node.clock()

    @property
    def source(self) -> GpuSource | None:
        now = self._node.clock()
        due = self._tried_at is None or now - self._tried_at >= _OPEN_INTERVAL
        if self._source is None and due:
            self._tried_at = now
            self._source = self._open()
        return self._source

    def use(self, source: GpuSource) -> None:
        """Use another source than this machine's."""
        self._source = source

    def _open(self) -> GpuSource | None:
        node = self._node
        driver_files = (node.dev / "nvidiactl", node.proc / "driver" / "nvidia" / "version")
        if not any(map(os.path.exists, driver_files)):
            # Nothing is imported in this case, so a node without a GPU pays no memory either.
            self.unavailable = "this node has no NVIDIA driver"
            logger.info("%s; GPUs are not measured", self.unavailable)
            return None
        try:
            import pynvml

            source = Nvml(pynvml, node.errors)
            logger.debug("NVML is used for %d GPUs", len(source.gpus))
            return source
        except Exception as error:
            # ImportError, or an exception class of the binding, which cannot be named without it.
            node.errors.add("NVML", f"{describe(error)}; {self._command} is used instead")
        if os.access(self._command, os.X_OK):
            return NvidiaSmi(node, self._command, self._timeout, node.errors)
        self.unavailable = f"neither NVML nor {self._command} can be used"
        node.errors.add("GPU", self.unavailable)
        return None

    def read(self, source: GpuSource, gpu: Gpu) -> Reading[GpuReading]:
        return self._node.reading(("gpu", gpu.key), lambda: source.read(gpu))

    def of_processes(self, source: GpuSource, members: Iterable[int]) -> set[str]:
        """The keys of the GPUs that any of these processes uses."""
        table = self._node.reading("gpu processes", source.processes, _PROCESSES_FRESHNESS).value
        if not table:
            return set()
        return set().union(*(table[pid] for pid in set(members) & table.keys()))

    def find(self, source: GpuSource, names: Iterable[str]) -> tuple[list[Gpu], list[str]]:
        """The GPUs that these names refer to, and the names that refer to none."""
        gpus, unknown = _find(source.gpus, names)
        now = self._node.clock()
        if unknown and now - self._refreshed_at >= _REFRESH_INTERVAL:
            self._refreshed_at = now
            source.refresh()
            gpus, unknown = _find(source.gpus, names)
        return gpus, unknown

    def close(self) -> None:
        if self._source is not None:
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
