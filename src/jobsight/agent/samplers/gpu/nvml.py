"""Readings from NVML, NVIDIA's management library.

The library is an argument of :class:`Nvml`, so that recorded results can be replayed. What a GPU
does in the time between two readings comes from three sources of the driver: the buffer of its
utilization samples, its counters (energy, reduced clocks, faults), and GPM, which computes from two
samples of the hardware's counters how busy the parts of the GPU were (Hopper and later).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from jobsight.agent.samplers.gpu.source import Gpu, GpuProcess, GpuReading
from jobsight.agent.samplers.readings import Errors
from jobsight.model import SECOND

#: More MIG instances than a GPU can have.
_MAX_INSTANCES: Final = 16
#: Xid errors of a GPU that are kept until it is read.
_MAX_XIDS: Final = 1000
_NOT_SUPPORTED: Final = 3
_NO_PERMISSION: Final = 4
_NOT_FOUND: Final = 6
_TIMEOUT: Final = 10
_FUNCTION_NOT_FOUND: Final = 13
#: Errors that persist while the driver runs.
_PERMANENT: Final = (_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND)
#: Errors after which the handle of the GPU is of no use, and what they mean.
_LOST: Final = {
    1: "the driver was unloaded",
    2: "the driver no longer knows the GPU",
    6: "the driver no longer knows the GPU",
    15: "the GPU has fallen off the bus",
    16: "the GPU requires a reset",
}
_CLOCKS: Final = {
    "clock_graphics": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_GRAPHICS"),
    "clock_sm": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
    "clock_memory": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
}
#: These take a millisecond each and change only by an administrator's command: they are read when
#: the GPUs are listed.
_APPLICATION_CLOCKS: Final = {
    "application_graphics": ("nvmlDeviceGetApplicationsClock", "NVML_CLOCK_GRAPHICS"),
    "application_memory": ("nvmlDeviceGetApplicationsClock", "NVML_CLOCK_MEM"),
}

#: Field of NVML -> reason of reduced clocks: counters that take microseconds, and milliseconds.
_THROTTLED: Final = {74: "power", 76: "sync", 269: "temperature"}
_THROTTLED_SLOW: Final = {270: "temperature", 271: "hardware"}
#: Bit of the current reasons -> reason, for drivers without the counters.
_REASON_BITS: Final = {
    0x4: "power",
    0x8: "hardware",
    0x10: "sync",
    0x20: "temperature",
    0x40: "temperature",
    0x80: "hardware",
}
#: Field of NVML -> kind of fault. Errors of memory are counted since the driver was loaded, rows
#: and pages since the GPU was made.
_FAULTS: Final = {
    3: "ecc corrected",
    4: "ecc uncorrected",
    29: "retired page",
    30: "retired page",
    142: "remapped row",
    143: "remapped row",
}
_FIELDS: Final = [*_THROTTLED, *_FAULTS]
#: Metric of GPM -> field of GpuUse: those that take some 50 microseconds each, and 200.
_PROFILE: Final = {
    2: "multiprocessor_time",
    3: "occupancy_time",
    5: "tensor_time",
    10: "bandwidth_time",
}
_PROFILE_SLOW: Final = {11: "fp64_time", 12: "fp32_time", 13: "fp16_time"}
#: The share of the time in which any kernel ran. It takes a millisecond, so the driver's buffer of
#: samples is used where there is one.
_GPM_ACTIVITY: Final = 1
#: Metric of GPM, in MiB a second -> field of GpuUse.
_PCIE: Final = {20: "pcie_sent_bytes", 21: "pcie_received_bytes"}
_NVLINK: Final = {60: "nvlink_received_bytes", 61: "nvlink_sent_bytes"}
_MEBIBYTE: Final = 2**20
#: The least time between two samples of GPM.
_LEAST_SPAN: Final = SECOND // 20
#: The type of a value of NVML -> its field in the union.
_VALUES: Final = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}

#: The end of the name of the server through which several processes use a GPU at the same time.
_MPS_SERVER: Final = "nvidia-cuda-mps-server"

NO_PERMISSION: Final = "no permission"
NEEDS_HOPPER: Final = "needs Hopper or later"
TOO_OLD: Final = "the NVIDIA driver is too old"


class Nvml:
    """NVML through the ``pynvml`` binding, initialized once for the node."""

    blocks = True

    def __init__(
        self, library: Any, errors: Errors, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._library = library
        self._errors = errors
        self._clock = clock
        self._handles: dict[str, Any] = {}
        #: GPU and call -> the permanent error that it gave.
        self._unsupported: dict[tuple[str, str], int] = {}
        self._lost: dict[str, str] = {}
        self._profilers: dict[str, GpmProfiler] = {}
        #: GPU -> the driver's time of its last utilization sample.
        self._sampled: dict[str, int] = {}
        self._processes_sampled: dict[str, int] = {}
        #: GPU -> the last value of each counter: one that could not be read keeps it.
        self._counters: dict[str, dict[int, int]] = {}
        self._application: dict[str, tuple[int | None, int | None]] = {}
        self._xids: dict[str, list[int]] = {}
        self._events: Any = None
        self.gpus: tuple[Gpu, ...] = ()
        library.nvmlInit()
        self.refresh()

    def refresh(self) -> None:
        for profiler in self._profilers.values():
            profiler.close()
        self._profilers.clear()
        self._handles.clear()
        self._unsupported.clear()
        self._lost.clear()
        self._application.clear()
        self._counters.clear()
        self.gpus = tuple(self._find())
        self._register_events()

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

    # One reading.

    def read(self, gpu: Gpu, *, samples: bool = True, counters: bool = True) -> GpuReading:
        handle = self._handles.get(gpu.key)
        reading = GpuReading()
        if handle is None:
            reading.failure = "the driver no longer lists the GPU"
            return reading
        self._lost.pop(gpu.key, None)
        self._read_memory(gpu, handle, reading)
        if gpu.key in self._lost:
            # No other call can succeed.
            reading.failure = self._lost[gpu.key]
            return reading
        self._read_profile(gpu, handle, reading, slow=counters)
        if gpu.parent is not None:
            # Power, clocks and counters are those of the entire GPU, which other jobs share.
            for group in ("energy", "throttling", "faults"):
                reading.missing[group] = "a MIG instance has none of its own"
            return reading
        self._read_activity(gpu, handle, reading, read_samples=samples)
        reading.power = self._call(gpu.key, "nvmlDeviceGetPowerUsage", handle)
        reading.power_limit = self._call(gpu.key, "nvmlDeviceGetEnforcedPowerLimit", handle)
        sensor = getattr(self._library, "NVML_TEMPERATURE_GPU", 0)
        reading.temperature = self._call(gpu.key, "nvmlDeviceGetTemperature", handle, sensor)
        self._read_clocks(gpu, handle, reading, _CLOCKS)
        if gpu.key not in self._application:
            self._read_clocks(gpu, handle, reading, _APPLICATION_CLOCKS)
            found = (reading.application_graphics, reading.application_memory)
            self._application[gpu.key] = found
        reading.application_graphics, reading.application_memory = self._application[gpu.key]
        self._read_counters(gpu, handle, reading, slow=counters)
        reading.xids = tuple(self._xids.pop(gpu.key, ()))
        if gpu.key in self._lost:
            reading.failure = self._lost[gpu.key]
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
        else:
            reading.missing["memory"] = self._reason(gpu.key, "nvmlDeviceGetMemoryInfo")

    def _read_clocks(
        self, gpu: Gpu, handle: Any, reading: GpuReading, clocks: dict[str, tuple[str, str]]
    ) -> None:
        for field, (function, clock) in clocks.items():
            clock_id = getattr(self._library, clock, None)
            if clock_id is not None:
                setattr(reading, field, self._call(gpu.key, function, handle, clock_id))

    def _read_activity(
        self, gpu: Gpu, handle: Any, reading: GpuReading, *, read_samples: bool
    ) -> None:
        """The utilization now, and its mean since the driver's buffer was last read, which takes
        milliseconds."""
        rates = self._call(gpu.key, "nvmlDeviceGetUtilizationRates", handle)
        if rates is not None:
            reading.utilization, reading.memory_utilization = rates.gpu, rates.memory
        else:
            mode = self._call(gpu.key, "nvmlDeviceGetMigMode", handle)
            reason = self._reason(gpu.key, "nvmlDeviceGetUtilizationRates")
            if mode and mode[0]:
                reason = "MIG mode is on"
                reading.missing |= dict.fromkeys(("profile", "pcie", "nvlink"), reason)
            reading.missing["activity"] = reason
        kind = getattr(self._library, "NVML_GPU_UTILIZATION_SAMPLES", None)
        function = "nvmlDeviceGetSamples"
        if kind is None or (gpu.key, function) in self._unsupported:
            return
        last = self._sampled.get(gpu.key, 0)
        if read_samples:
            # "Not found" means that there is no new sample.
            found = self._call(gpu.key, function, handle, kind, last, quiet=True)
            samples = found[1] if found is not None else []
            if samples:
                self._sampled[gpu.key] = samples[-1].timeStamp
                if last:
                    _add_samples(reading, samples, last)
        reading.activity_follows = gpu.key in self._sampled

    def _profiler(self, gpu: Gpu, handle: Any, *, slow: bool) -> GpmProfiler:
        key = f"{gpu.key} slow" if slow else gpu.key
        profiler = self._profilers.get(key)
        if profiler is None:
            parent = handle if gpu.parent is None else self._handles.get(gpu.parent)
            metrics = [*_PROFILE, *_PCIE, *_NVLINK]
            if slow:
                metrics = [*_PROFILE_SLOW, *([_GPM_ACTIVITY] if gpu.parent is not None else [])]
            profiler = GpmProfiler(self._library, parent, gpu.gpu_instance, metrics, self._clock)
            self._profilers[key] = profiler
        return profiler

    def _read_profile(self, gpu: Gpu, handle: Any, reading: GpuReading, *, slow: bool) -> None:
        profiler = self._profiler(gpu, handle, slow=False)
        metrics = profiler.read()
        slow_profiler = self._profiler(gpu, handle, slow=True) if slow else None
        slow_metrics = slow_profiler.read() if slow_profiler is not None else {}
        if not metrics:
            if profiler.reason:
                reading.missing |= dict.fromkeys(("profile", "pcie", "nvlink"), profiler.reason)
                if gpu.parent is not None:
                    reading.missing["activity"] = profiler.reason
            return
        seconds = profiler.seconds
        reading.profile = _integrals(_PROFILE, metrics, seconds)
        reading.profile_span = round(seconds * SECOND)
        reading.activity_follows = gpu.parent is not None
        if slow_profiler is not None:
            seconds_of_slow = slow_profiler.seconds
            reading.profile |= _integrals(_PROFILE_SLOW, slow_metrics, seconds_of_slow)
            if _GPM_ACTIVITY in slow_metrics:
                reading.activity = slow_metrics[_GPM_ACTIVITY] / 100
                reading.activity_span = round(seconds_of_slow * SECOND)
        reading.traffic = {}
        for group, table in (("pcie", _PCIE), ("nvlink", _NVLINK)):
            if all(metric in metrics for metric in table):
                for metric, field in table.items():
                    reading.traffic[field] = round(metrics[metric] * _MEBIBYTE * seconds)
            else:
                reading.missing[group] = "not supported by this GPU"

    def _read_counters(self, gpu: Gpu, handle: Any, reading: GpuReading, *, slow: bool) -> None:
        fields = [*_FIELDS, *(_THROTTLED_SLOW if slow else ())]
        values = self._field_values(gpu.key, handle, fields)
        if slow:
            energy = self._call(gpu.key, "nvmlDeviceGetTotalEnergyConsumption", handle)
            if energy is not None:
                reading.energy = energy * 1000
        known = self._counters.setdefault(gpu.key, {})
        known |= values
        if 269 in values and 74 in values:
            reading.throttled = _sums(_THROTTLED | _THROTTLED_SLOW, known)
        else:
            self._read_reasons(gpu, handle, reading)
        if values:
            reading.faults = _sums(_FAULTS, known)
        else:
            reading.missing["faults"] = self._reason(gpu.key, "nvmlDeviceGetFieldValues")

    def _read_reasons(self, gpu: Gpu, handle: Any, reading: GpuReading) -> None:
        function = "nvmlDeviceGetCurrentClocksEventReasons"
        bits = self._call(gpu.key, function, handle)
        if bits is None:
            function = "nvmlDeviceGetCurrentClocksThrottleReasons"
            bits = self._call(gpu.key, function, handle)
        if bits is None:
            reading.missing["throttling"] = self._reason(gpu.key, function)
        else:
            reading.throttled_now = frozenset(
                reason for bit, reason in _REASON_BITS.items() if bits & bit
            )

    def _field_values(self, key: str, handle: Any, fields: list[int]) -> dict[int, int]:
        """The fields that the GPU provides, in one call."""
        found = self._call(key, "nvmlDeviceGetFieldValues", handle, fields)
        values: dict[int, int] = {}
        for value in found if found is not None else ():
            if value.nvmlReturn == 0 and value.valueType in _VALUES:
                values[value.fieldId] = int(getattr(value.value, _VALUES[value.valueType]))
        return values

    # Xid errors.

    def _register_events(self) -> None:
        """Let the driver queue Xid errors; without the permission there are none."""
        kind = getattr(self._library, "nvmlEventTypeXidCriticalError", None)
        if kind is None:
            return
        if self._events is not None:
            self._call("", "nvmlEventSetFree", self._events, quiet=True)
        self._events = self._call("", "nvmlEventSetCreate", quiet=True)
        if self._events is None:
            return
        for gpu in self.gpus:
            if gpu.parent is None:
                handle = self._handles[gpu.key]
                self._call("", "nvmlDeviceRegisterEvents", handle, kind, self._events, quiet=True)

    def _receive_events(self) -> None:
        for _ in range(100):
            if self._events is None:
                return
            event = self._call("", "nvmlEventSetWait", self._events, 0, quiet=True)
            if event is None:
                return
            uuid = _text(self._call("", "nvmlDeviceGetUUID", event.device, quiet=True))
            for gpu in self.gpus:
                if gpu.uuid == uuid:
                    xids = self._xids.setdefault(gpu.key, [])
                    # Those of a GPU that no job holds wait for the next job.
                    del xids[: len(xids) - _MAX_XIDS + 1]
                    xids.append(event.eventData)

    # Processes.

    def processes(self, candidates: Collection[int]) -> list[GpuProcess]:
        # Called once in a round, whichever GPUs are read.
        self._receive_events()
        processes: list[GpuProcess] = []
        parents = {gpu.parent for gpu in self.gpus if gpu.parent is not None}
        for gpu in self.gpus:
            # A partitioned GPU repeats the processes of its instances.
            if gpu.key in parents or gpu.key not in self._handles:
                continue
            handle = self._handles[gpu.key]
            memory = self._running(gpu, handle)
            # The time of one process is that of the GPU. Only several need to be distinguished.
            shares = self._shares(gpu, handle) if len(memory) > 1 else {}
            processes += [
                GpuProcess(pid, gpu.key, memory.get(pid), shares.get(pid))
                for pid in memory.keys() | shares.keys()
            ]
        return processes

    def _running(self, gpu: Gpu, handle: Any) -> dict[int, int | None]:
        """The PIDs on a GPU and their memory. The clients of an MPS server have a list of their
        own; the server itself uses nothing."""
        running = self._call(gpu.key, "nvmlDeviceGetComputeRunningProcesses", handle) or []
        found = {one.pid: getattr(one, "usedGpuMemory", None) for one in running}
        if not found:
            return {}
        clients = self._call(gpu.key, "nvmlDeviceGetMPSComputeRunningProcesses", handle, quiet=True)
        if not clients:
            return found
        used = {one.pid: getattr(one, "usedGpuMemory", None) for one in clients}
        for pid in found.keys() - used.keys():
            name = _text(self._call("", "nvmlSystemGetProcessName", pid, quiet=True))
            if not name.endswith(_MPS_SERVER):
                used[pid] = found[pid]
        return used

    def _shares(self, gpu: Gpu, handle: Any) -> dict[int, float]:
        if gpu.parent is not None:
            return {}
        last = self._processes_sampled.get(gpu.key, 0)
        samples = (
            self._call(gpu.key, "nvmlDeviceGetProcessUtilization", handle, last, quiet=True) or ()
        )
        if samples:
            self._processes_sampled[gpu.key] = max(sample.timeStamp for sample in samples)
        # The buffer may hold processes of hours ago when it is read for the first time.
        # Some drivers give values far above 100.
        return {
            sample.pid: min(sample.smUtil, 100) / 100 for sample in samples if last and sample.pid
        }

    # For people.

    def describe(self, gpu: Gpu) -> list[str]:
        reading = self.read(gpu)
        if reading.failure:
            return [reading.failure]
        energy = "energy counter" if reading.energy is not None else "power, no energy counter"
        if reading.power is None and reading.energy is None:
            energy = "no power"
        handle = self._handles[gpu.key]
        profiler = self._profilers[gpu.key]
        found = ["memory", energy]
        if gpu.parent is None and "activity" not in reading.missing:
            found.append("utilization")
        if profiler.reason:
            found.append(f"no multiprocessor, tensor and bandwidth figures: {profiler.reason}")
        else:
            found.append("multiprocessor, tensor, bandwidth and PCIe figures (GPM)")
        if gpu.parent is None:
            missing = reading.missing
            found += [
                f"no {group}: {missing[group]}"
                for group in ("throttling", "faults")
                if group in missing
            ]
            self._call(gpu.key, "nvmlDeviceGetProcessUtilization", handle, 0, quiet=True)
            if (gpu.key, "nvmlDeviceGetProcessUtilization") in self._unsupported:
                found.append(
                    "jobs that share it get equal parts: its processes have no utilization"
                )
        return found

    # Calls.

    def _call(self, key: str, function: str, *arguments: Any, quiet: bool = False) -> Any:
        """Call a function; None if it fails. After a permanent error it is not called again."""
        name = _call_name(function, arguments)
        if (key, name) in self._unsupported:
            return None
        try:
            return getattr(self._library, function)(*arguments)
        except AttributeError:
            # The binding is older than the function.
            self._unsupported[(key, name)] = _FUNCTION_NOT_FOUND
        except self._library.NVMLError as error:
            code = getattr(error, "value", None)
            if code in _PERMANENT:
                if key:
                    self._unsupported[(key, name)] = code
                return None
            if key and code in _LOST and not (quiet and code == _NOT_FOUND):
                self._lost[key] = _LOST[code]
            if not quiet:
                self._errors.add(f"GPU {key or 'list'}: {function}", str(error))
        return None

    def _reason(self, key: str, function: str) -> str:
        codes = {
            code
            for (gpu, name), code in self._unsupported.items()
            if gpu == key and name.startswith(function)
        }
        return _reason(next(iter(codes), None))

    def close(self) -> None:
        for profiler in self._profilers.values():
            profiler.close()
        try:
            self._library.nvmlShutdown()
        except self._library.NVMLError as error:
            self._errors.add("nvmlShutdown", str(error))


class GpmProfiler:
    """GPM of one GPU or MIG instance: metrics between two samples of the hardware's counters."""

    def __init__(
        self,
        library: Any,
        handle: Any,
        instance: int | None,
        metrics: list[int],
        clock: Callable[[], int],
    ) -> None:
        self._library = library
        self._metrics = metrics
        self._clock = clock
        self._handle = handle
        self._instance = instance
        self._samples: list[Any] = []
        self._request: Any = None
        self._sampled = False
        #: The clock of the last two samples, and the seconds between them.
        self._time = 0
        self.seconds = 0.0
        #: Why there are no metrics, now or ever.
        self.reason = ""
        self._unsupported = False
        self._open()

    def _open(self) -> None:
        library = self._library
        if self._handle is None or not hasattr(library, "nvmlGpmQueryDeviceSupport"):
            self.reason, self._unsupported = TOO_OLD, True
            return
        try:
            if not library.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                self.reason, self._unsupported = NEEDS_HOPPER, True
                return
            self._samples = [library.nvmlGpmSampleAlloc(), library.nvmlGpmSampleAlloc()]
        except (AttributeError, library.NVMLError) as error:
            self._fail(error)
            return
        # One request for all readings: the structure has room for hundreds of metrics.
        request = library.c_nvmlGpmMetricsGet_t()
        request.version = getattr(library, "NVML_GPM_METRICS_GET_VERSION", 1)
        request.numMetrics = len(self._metrics)
        for index, metric in enumerate(self._metrics):
            request.metrics[index].metricId = metric
        self._request = request

    def _fail(self, error: Exception) -> None:
        code = getattr(error, "value", _FUNCTION_NOT_FOUND)
        self.reason = NEEDS_HOPPER if code == _NOT_SUPPORTED else _reason(code)
        self._unsupported = code in _PERMANENT
        self._sampled = False

    def read(self) -> dict[int, float]:
        """Metric -> its mean since the last reading; empty at the first one."""
        if self._unsupported:
            return {}
        if self._sampled and self._clock() - self._time < _LEAST_SPAN:
            # Samples that are too close have zeros. The next reading covers this time.
            return {}
        library = self._library
        before, now = self._samples
        try:
            if self._instance is None:
                library.nvmlGpmSampleGet(self._handle, now)
            else:
                library.nvmlGpmMigSampleGet(self._handle, self._instance, now)
            now_time = self._clock()
            self.seconds, self._time = (now_time - self._time) / SECOND, now_time
            self._samples = [now, before]
            if not self._sampled:
                self._sampled = True
                return {}
            request = self._request
            request.sample1, request.sample2 = before, now
            library.nvmlGpmMetricsGet(request)
        except library.NVMLError as error:
            self._fail(error)
            return {}
        self.reason = ""
        found: dict[int, float] = {}
        for index in range(request.numMetrics):
            metric = request.metrics[index]
            # A counter that was reset between the samples gives nonsense.
            if metric.nvmlReturn == 0 and 0 <= metric.value < 1e12:
                found[metric.metricId] = metric.value
        return found

    def close(self) -> None:
        for sample in self._samples:
            try:
                self._library.nvmlGpmSampleFree(sample)
            except (AttributeError, self._library.NVMLError):
                pass
        self._samples = []
        self._unsupported = True


def _integrals(
    fields: dict[int, str], metrics: dict[int, float], seconds: float
) -> dict[str, float]:
    """Percent of the time between two samples, as nanoseconds."""
    return {
        field: min(metrics[metric] / 100, 1.0) * seconds * SECOND
        for metric, field in fields.items()
        if metric in metrics
    }


def _sums(kinds: dict[int, str], values: dict[int, int]) -> dict[str, int]:
    """Counters by kind; several of them may be of one kind."""
    sums: dict[str, int] = {}
    for field, kind in kinds.items():
        if field in values:
            sums[kind] = sums.get(kind, 0) + values[field]
    return sums


def _call_name(function: str, arguments: tuple[Any, ...]) -> str:
    """A call by its constant arguments: a time is not part of it."""
    if function in ("nvmlDeviceGetSamples", "nvmlDeviceGetProcessUtilization"):
        return function
    return f"{function}{arguments[1:]}"


def _reason(code: int | None) -> str:
    if code == _NO_PERMISSION:
        return NO_PERMISSION
    if code == _FUNCTION_NOT_FOUND:
        return TOO_OLD
    if code in _LOST and code != _NOT_FOUND:
        return _LOST[code]
    return "not supported by this GPU" if code == _NOT_SUPPORTED else "the driver gave an error"


def _add_samples(reading: GpuReading, samples: list[Any], last: int) -> None:
    """Each sample is the mean of the time since the one before it, in microseconds."""
    total = covered = 0
    for sample in samples:
        # After a gap of the buffer, the first sample stands for its own period only.
        span = min(max(0, sample.timeStamp - last), 1_000_000)
        total += sample.sampleValue.uiVal * span
        covered += span
        last = sample.timeStamp
    if covered:
        reading.activity = min(1.0, total / covered / 100)
        reading.activity_span = covered * 1000


def _text(value: object) -> str:
    if isinstance(value, bytes):
        # Bindings before version 12 return bytes.
        return value.decode("utf-8", "replace")
    return str(value) if value is not None else ""
