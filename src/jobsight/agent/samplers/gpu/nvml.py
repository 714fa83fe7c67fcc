"""Readings from NVML, NVIDIA's management library.

The library is an argument of :class:`Nvml`, so that recorded results can be replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

import msgspec

from jobsight.agent.samplers.readings import Errors

#: More MIG instances than a GPU can have.
_MAX_INSTANCES: Final = 16
#: Errors that persist while the driver runs: not supported, no permission, function not found.
_PERMANENT: Final = (3, 4, 13)
_CLOCKS: Final = {
    "clock_graphics": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_GRAPHICS"),
    "clock_sm": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
    "clock_memory": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
    "application_graphics": ("nvmlDeviceGetApplicationsClock", "NVML_CLOCK_GRAPHICS"),
    "application_memory": ("nvmlDeviceGetApplicationsClock", "NVML_CLOCK_MEM"),
}


class Gpu(msgspec.Struct, frozen=True):
    """A GPU or a MIG instance of one."""

    #: The index as nvidia-smi gives it; ``0:1`` is the second instance of the first GPU.
    key: str
    index: int
    uuid: str
    name: str
    #: The minor number of its device file, which Slurm uses.
    minor: int | None = None
    #: Of a MIG instance: the key of its GPU, and its ids there.
    parent: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class GpuReading(msgspec.Struct):
    """The current readings of a GPU; None if the GPU does not provide one."""

    #: Percent of the driver's last sample period in which a kernel ran or memory was accessed.
    utilization: int | None = None
    memory_utilization: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    #: Milliwatts.
    power: int | None = None
    power_limit: int | None = None
    #: Degrees Celsius.
    temperature: int | None = None
    #: Megahertz.
    clock_graphics: int | None = None
    clock_sm: int | None = None
    clock_memory: int | None = None
    application_graphics: int | None = None
    application_memory: int | None = None


class GpuSource(Protocol):
    """A source of GPU readings: the library, a command, or a recording."""

    @property
    def gpus(self) -> tuple[Gpu, ...]: ...
    def read(self, gpu: Gpu) -> GpuReading: ...
    def processes(self) -> dict[int, set[str]]:
        """PID -> the keys of the GPUs that it uses."""
        ...

    def refresh(self) -> None:
        """List the GPUs again."""
        ...

    def close(self) -> None: ...


class Nvml:
    """NVML through the ``pynvml`` binding, initialized once for the node."""

    def __init__(self, library: Any, errors: Errors) -> None:
        self._library = library
        self._errors = errors
        self._handles: dict[str, Any] = {}
        self._unsupported: set[tuple[str, str]] = set()
        self.gpus: tuple[Gpu, ...] = ()
        library.nvmlInit()
        self.refresh()

    def refresh(self) -> None:
        self._handles.clear()
        self._unsupported.clear()
        self.gpus = tuple(self._find())

    def _find(self) -> Iterator[Gpu]:
        for index in range(self._call("", "nvmlDeviceGetCount") or 0):
            handle = self._call("", "nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue
            gpu = self._describe(str(index), index, handle)
            yield gpu
            yield from self._find_instances(gpu, handle)

    def _describe(self, key: str, index: int, handle: Any, parent: Gpu | None = None) -> Gpu:
        self._handles[key] = handle
        uuid = _text(self._call(key, "nvmlDeviceGetUUID", handle))
        if parent is None:
            name = _text(self._call(key, "nvmlDeviceGetName", handle))
            return Gpu(key, index, uuid, name, self._call(key, "nvmlDeviceGetMinorNumber", handle))
        return Gpu(
            key,
            index,
            uuid,
            f"{parent.name} MIG",
            parent.minor,
            parent.key,
            self._call(key, "nvmlDeviceGetGpuInstanceId", handle),
            self._call(key, "nvmlDeviceGetComputeInstanceId", handle),
        )

    def _find_instances(self, gpu: Gpu, handle: Any) -> Iterator[Gpu]:
        mode = self._call(gpu.key, "nvmlDeviceGetMigMode", handle)
        if not mode or not mode[0]:
            return
        count = self._call(gpu.key, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        for index in range(min(count, _MAX_INSTANCES)):
            # An index without an instance gives the error "not found", which is expected.
            instance = self._call(
                "", "nvmlDeviceGetMigDeviceHandleByIndex", handle, index, quiet=True
            )
            if instance is not None:
                yield self._describe(f"{gpu.key}:{index}", gpu.index, instance, gpu)

    def read(self, gpu: Gpu) -> GpuReading:
        handle = self._handles.get(gpu.key)
        reading = GpuReading()
        if handle is None:
            return reading
        self._read_memory(gpu, handle, reading)
        if gpu.parent is not None:
            # Power, clocks and utilization are those of the entire GPU, which other jobs share.
            return reading
        rates = self._call(gpu.key, "nvmlDeviceGetUtilizationRates", handle)
        if rates is not None:
            reading.utilization, reading.memory_utilization = rates.gpu, rates.memory
        reading.power = self._call(gpu.key, "nvmlDeviceGetPowerUsage", handle)
        reading.power_limit = self._call(gpu.key, "nvmlDeviceGetEnforcedPowerLimit", handle)
        sensor = getattr(self._library, "NVML_TEMPERATURE_GPU", 0)
        reading.temperature = self._call(gpu.key, "nvmlDeviceGetTemperature", handle, sensor)
        for field, (function, clock) in _CLOCKS.items():
            clock_id = getattr(self._library, clock, None)
            if clock_id is not None:
                setattr(reading, field, self._call(gpu.key, function, handle, clock_id))
        return reading

    def _read_memory(self, gpu: Gpu, handle: Any, reading: GpuReading) -> None:
        """Read memory; version 2 of the call excludes what the driver reserves."""
        version = getattr(self._library, "nvmlMemory_v2", None)
        memory = None
        if version is not None:
            memory = self._call(gpu.key, "nvmlDeviceGetMemoryInfo", handle, version, quiet=True)
        if memory is None:
            memory = self._call(gpu.key, "nvmlDeviceGetMemoryInfo", handle)
        if memory is not None:
            reading.memory_used, reading.memory_total = memory.used, memory.total

    def processes(self) -> dict[int, set[str]]:
        processes: dict[int, set[str]] = {}
        parents = {gpu.parent for gpu in self.gpus if gpu.parent is not None}
        for gpu in self.gpus:
            # A partitioned GPU repeats the processes of its instances.
            if gpu.key in parents or gpu.key not in self._handles:
                continue
            handle = self._handles[gpu.key]
            for process in (
                self._call(gpu.key, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
            ):
                processes.setdefault(process.pid, set()).add(gpu.key)
        return processes

    def _call(self, key: str, function: str, *arguments: Any, quiet: bool = False) -> Any:
        """Call a function; None if it fails. After a permanent error it is not called again."""
        name = f"{function}{arguments[1:]}"
        if (key, name) in self._unsupported:
            return None
        try:
            return getattr(self._library, function)(*arguments)
        except AttributeError:
            # The binding is older than the function.
            self._unsupported.add((key, name))
        except self._library.NVMLError as error:
            if getattr(error, "value", None) in _PERMANENT:
                if key:
                    self._unsupported.add((key, name))
            elif not quiet:
                self._errors.add(f"GPU {key or 'list'}: {function}", str(error))
        return None

    def close(self) -> None:
        try:
            self._library.nvmlShutdown()
        except self._library.NVMLError as error:
            self._errors.add("nvmlShutdown", str(error))


def _text(value: object) -> str:
    if isinstance(value, bytes):
        # Bindings before version 12 return bytes.
        return value.decode("utf-8", "replace")
    return str(value) if value is not None else ""
