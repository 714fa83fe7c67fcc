"""NVIDIA's management library, asked through one small class, so that answers can be replayed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

import msgspec

from jobsight.agent.samplers.readings import Errors

#: More instances than a GPU can have.
_MIG_LIMIT: Final = 16
#: Codes that will not change while the driver runs: not supported, no permission, not there.
_LASTING: Final = (3, 4, 13)
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
    #: The number of its device file, which is how Slurm counts.
    minor: int | None = None
    #: Of an instance: its GPU and its numbers there.
    parent: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class GpuReading(msgspec.Struct):
    """What a GPU says now; None is "not said"."""

    #: Percent of the last moments in which a kernel ran, and in which memory was accessed.
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
    """Where readings of GPUs come from: the library, a command, or a recording."""

    @property
    def gpus(self) -> tuple[Gpu, ...]: ...
    def read(self, gpu: Gpu) -> GpuReading: ...
    def processes(self) -> dict[int, set[str]]:
        """Process -> the keys of the GPUs it computes on."""
        ...

    def refresh(self) -> None:
        """Look again which GPUs there are."""
        ...

    def close(self) -> None: ...


class Nvml:
    """The library behind ``pynvml``, opened once for the node."""

    def __init__(self, library: Any, errors: Errors) -> None:
        self._library = library
        self._errors = errors
        self._handles: dict[str, Any] = {}
        self._refused: set[tuple[str, str]] = set()
        self.gpus: tuple[Gpu, ...] = ()
        library.nvmlInit()
        self.refresh()

    def refresh(self) -> None:
        self._handles.clear()
        self._refused.clear()
        self.gpus = tuple(self._find())

    def _find(self) -> Iterator[Gpu]:
        for index in range(self._ask("", "nvmlDeviceGetCount") or 0):
            handle = self._ask("", "nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue
            gpu = self._describe(str(index), index, handle)
            yield gpu
            yield from self._find_instances(gpu, handle)

    def _describe(self, key: str, index: int, handle: Any, parent: Gpu | None = None) -> Gpu:
        self._handles[key] = handle
        uuid = _text(self._ask(key, "nvmlDeviceGetUUID", handle))
        if parent is None:
            name = _text(self._ask(key, "nvmlDeviceGetName", handle))
            return Gpu(key, index, uuid, name, self._ask(key, "nvmlDeviceGetMinorNumber", handle))
        return Gpu(
            key,
            index,
            uuid,
            f"{parent.name} MIG",
            parent.minor,
            parent.key,
            self._ask(key, "nvmlDeviceGetGpuInstanceId", handle),
            self._ask(key, "nvmlDeviceGetComputeInstanceId", handle),
        )

    def _find_instances(self, gpu: Gpu, handle: Any) -> Iterator[Gpu]:
        mode = self._ask(gpu.key, "nvmlDeviceGetMigMode", handle)
        if not mode or not mode[0]:
            return
        count = self._ask(gpu.key, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        for number in range(min(count, _MIG_LIMIT)):
            # Places without an instance answer "not found", which is no trouble.
            found = self._ask("", "nvmlDeviceGetMigDeviceHandleByIndex", handle, number, quiet=True)
            if found is not None:
                yield self._describe(f"{gpu.key}:{number}", gpu.index, found, gpu)

    def read(self, gpu: Gpu) -> GpuReading:
        handle = self._handles.get(gpu.key)
        reading = GpuReading()
        if handle is None:
            return reading
        self._read_memory(gpu, handle, reading)
        if gpu.parent is not None:
            # Power, clocks and use are those of the whole GPU, which others share.
            return reading
        use = self._ask(gpu.key, "nvmlDeviceGetUtilizationRates", handle)
        if use is not None:
            reading.utilization, reading.memory_utilization = use.gpu, use.memory
        reading.power = self._ask(gpu.key, "nvmlDeviceGetPowerUsage", handle)
        reading.power_limit = self._ask(gpu.key, "nvmlDeviceGetEnforcedPowerLimit", handle)
        sensor = getattr(self._library, "NVML_TEMPERATURE_GPU", 0)
        reading.temperature = self._ask(gpu.key, "nvmlDeviceGetTemperature", handle, sensor)
        for field, (function, clock) in _CLOCKS.items():
            number = getattr(self._library, clock, None)
            if number is not None:
                setattr(reading, field, self._ask(gpu.key, function, handle, number))
        return reading

    def _read_memory(self, gpu: Gpu, handle: Any, reading: GpuReading) -> None:
        """The second version of the call leaves out what the driver keeps for itself."""
        version = getattr(self._library, "nvmlMemory_v2", None)
        found = None
        if version is not None:
            found = self._ask(gpu.key, "nvmlDeviceGetMemoryInfo", handle, version, quiet=True)
        if found is None:
            found = self._ask(gpu.key, "nvmlDeviceGetMemoryInfo", handle)
        if found is not None:
            reading.memory_used, reading.memory_total = found.used, found.total

    def processes(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        parents = {gpu.parent for gpu in self.gpus if gpu.parent is not None}
        for gpu in self.gpus:
            # A divided GPU repeats what its instances say.
            if gpu.key in parents or gpu.key not in self._handles:
                continue
            handle = self._handles[gpu.key]
            for process in self._ask(gpu.key, "nvmlDeviceGetComputeRunningProcesses", handle) or ():
                found.setdefault(process.pid, set()).add(gpu.key)
        return found

    def _ask(self, key: str, function: str, *arguments: Any, quiet: bool = False) -> Any:
        """One call; None where it is refused. A lasting refusal is not asked for again."""
        name = f"{function}{arguments[1:]}"
        if (key, name) in self._refused:
            return None
        try:
            return getattr(self._library, function)(*arguments)
        except AttributeError:
            # The binding is older than the call.
            self._refused.add((key, name))
        except self._library.NVMLError as error:
            if getattr(error, "value", None) in _LASTING:
                if key:
                    self._refused.add((key, name))
            elif not quiet:
                self._errors.note(f"GPU {key or 'list'}: {function}", str(error))
        return None

    def close(self) -> None:
        try:
            self._library.nvmlShutdown()
        except self._library.NVMLError as error:
            self._errors.note("nvmlShutdown", str(error))


def _text(value: object) -> str:
    if isinstance(value, bytes):
        # Bindings before version 12 give bytes.
        return value.decode("utf-8", "replace")
    return str(value) if value is not None else ""
