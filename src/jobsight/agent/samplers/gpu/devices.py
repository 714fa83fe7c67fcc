"""The GPUs of the node, shared by all jobs: which there are, whose they are, what they say."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from jobsight.agent.samplers.gpu.nvidia_smi import NvidiaSmi
from jobsight.agent.samplers.gpu.nvml import Gpu, GpuReading, GpuSource, Nvml
from jobsight.agent.samplers.node import Node, Reading
from jobsight.agent.samplers.readings import describe
from jobsight.model import SECOND

#: A driver may come later than the agent; GPUs may be divided anew between jobs.
_LOOK_AGAIN: Final = 300 * SECOND
_REFRESH: Final = 60 * SECOND
_PROCESSES_FRESH: Final = 2 * SECOND
_RANGE: Final = re.compile(r"(\d{1,4})-(\d{1,4})")


class NodeGpus:
    """Opened once; without a GPU it costs a look at the clock."""

    def __init__(self, node: Node, command: str, timeout: float) -> None:
        self._node = node
        self._command = command
        self._timeout = timeout
        self._source: GpuSource | None = None
        self._looked: int | None = None
        self._refreshed = node.clock()

    @property
    def source(self) -> GpuSource | None:
        now = self._node.clock()
        if self._source is None and (self._looked is None or now - self._looked >= _LOOK_AGAIN):
            self._looked = now
            self._source = self._open()
        return self._source

    def use(self, source: GpuSource) -> None:
        """Take another source than this machine's own."""
        self._source = source

    def _open(self) -> GpuSource | None:
        node = self._node
        signs = (node.dev / "nvidiactl", node.proc / "driver" / "nvidia" / "version")
        if not any(map(os.path.exists, signs)):
            # Only now would anything be imported, so a node without a GPU pays no memory either.
            node.errors.note("GPU", "this node has no NVIDIA driver; GPUs are not looked at")
            return None
        try:
            import pynvml

            return Nvml(pynvml, node.errors)
        except ImportError as error:
            node.errors.note("NVML", f"{describe(error)}; {self._command} is asked instead")
        except Exception as error:
            # The binding raises classes of its own that cannot be named without it.
            node.errors.note("NVML", f"{describe(error)}; {self._command} is asked instead")
        if os.access(self._command, os.X_OK):
            return NvidiaSmi(node, self._command, self._timeout, node.errors)
        node.errors.note("GPU", f"neither NVML nor {self._command} can be used")
        return None

    def read(self, source: GpuSource, gpu: Gpu) -> Reading[GpuReading]:
        return self._node.reading(("gpu", gpu.key), lambda: source.read(gpu))

    def of_processes(self, source: GpuSource, members: Iterable[int]) -> set[str]:
        """The keys of the GPUs on which any of these processes computes."""
        table = self._node.reading("gpu processes", source.processes, _PROCESSES_FRESH).value
        found: set[str] = set()
        if table:
            for pid in set(members) & table.keys():
                found |= table[pid]
        return found

    def find(self, source: GpuSource, names: Iterable[str]) -> tuple[list[Gpu], list[str]]:
        """The GPUs that these names mean, and the names that mean none."""
        gpus, unknown = _find(source.gpus, names)
        now = self._node.clock()
        if unknown and now - self._refreshed >= _REFRESH:
            self._refreshed = now
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
        found = next((gpu for gpu in present if is_called(gpu, name)), None)
        if found is None:
            unknown.append(name)
        else:
            gpus[found.key] = found
    return list(gpus.values()), unknown


def is_called(gpu: Gpu, name: str) -> bool:
    """Whether a name means this GPU: device number, UUID, or the names of MIG instances."""
    if name.isascii() and name.isdigit():
        number = gpu.minor if gpu.minor is not None else gpu.index
        return gpu.parent is None and number == int(name)
    if name.startswith("MIG-GPU-"):
        # Drivers before 470 name an instance by its GPU and its two numbers.
        return gpu.uuid == name
    if name.startswith(("GPU-", "MIG-")):
        # A beginning is enough, as for CUDA_VISIBLE_DEVICES.
        return len(name) >= 8 and gpu.uuid.startswith(name)
    return gpu.key == name


def parse_gpu_list(text: str) -> tuple[str, ...]:
    """Read a list as Slurm writes it: ``0,10``, ``0-3``, UUIDs."""
    names: list[str] = []
    for part in text.split(","):
        part = part.strip()
        match = _RANGE.fullmatch(part)
        if match:
            names += map(str, range(int(match[1]), int(match[2]) + 1))
        elif part:
            names.append(part)
    return tuple(names)
