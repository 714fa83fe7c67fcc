"""Recording of NVML's results on a machine with a GPU, and their replay on any other."""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from jobsight.agent.samplers.gpu.nvml import Nvml
from jobsight.agent.samplers.readings import Errors

#: Calls whose result is an argument of others, and the label of such a result.
_HANDLES: Final = {
    "nvmlDeviceGetHandleByIndex": "gpu",
    "nvmlDeviceGetMigDeviceHandleByIndex": "gpu",
    "nvmlGpmSampleAlloc": "sample",
    "nvmlEventSetCreate": "events",
}
#: The last argument is a time, which is another one in a replay.
_TIMED: Final = ("nvmlDeviceGetSamples", "nvmlDeviceGetProcessUtilization")
#: Calls that work on samples and requests, which are no plain values.
_GPM: Final = ("nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet")
_CONSTANTS: Final = (
    "NVML_GPM_METRICS_GET_VERSION",
    "NVML_GPU_UTILIZATION_SAMPLES",
    "nvmlEventTypeXidCriticalError",
    "NVML_CLOCK_GRAPHICS",
    "NVML_CLOCK_SM",
    "NVML_CLOCK_MEM",
    "NVML_TEMPERATURE_GPU",
    "nvmlMemory_v2",
)


def record(library: Any, samples: int, interval: float) -> dict[str, Any]:
    """Record every call of the sampler for a number of samples. Processes of other PIDs than those
    on a GPU are not looked up."""
    recorder = RecordingLibrary(library)
    errors = Errors()
    source = Nvml(recorder, errors)
    for gpu in source.gpus:
        source.describe(gpu)
    driver = plain(recorder.nvmlSystemGetDriverVersion())
    for sample in range(samples):
        if sample:
            time.sleep(interval)
        source.processes(())
        for gpu in source.gpus:
            # As the agent does: usual readings, and some with all that takes milliseconds.
            slow = sample % 2 == 0
            source.read(gpu, samples=slow, counters=slow)
    source.close()
    recording = {
        "driver": driver,
        "errors": errors.causes,
        "constants": recorder.constants,
        "calls": recorder.calls,
    }
    text = json.dumps(recording)
    for number, gpu in enumerate(source.gpus):
        # A recording does not identify the GPUs.
        kind = gpu.uuid.partition("-")[0]
        text = text.replace(gpu.uuid, f"{kind}-00000000-0000-0000-0000-{number:012d}")
    anonymous: dict[str, Any] = json.loads(text)
    return anonymous


class RecordingLibrary:
    """Forwards every call and records its result."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._labels: dict[int, str] = {}
        # Handles are kept alive, so that no other object gets the id of one of them.
        self._handles: list[Any] = []
        self.NVMLError = library.NVMLError
        self.calls: dict[str, list[Any]] = {}
        self.constants = {n: getattr(library, n) for n in _CONSTANTS if hasattr(library, n)}

    def __getattr__(self, name: str) -> Any:
        if name in self.constants:
            return self.constants[name]
        function = getattr(self._library, name)
        if not name.startswith("nvml"):
            return function

        def call(*arguments: Any) -> Any:
            key = call_name(
                name, [self._labels.get(id(argument), argument) for argument in arguments]
            )
            results = self.calls.setdefault(key, [])
            try:
                result = function(*arguments)
            except self.NVMLError as error:
                results.append({"error": error.value, "text": str(error)})
                raise
            if name in _HANDLES:
                self._handles.append(result)
                kind = _HANDLES[name]
                number = sum(label.startswith(kind) for label in self._labels.values())
                self._labels[id(result)] = f"{kind}{number}"
                results.append({"handle": self._labels[id(result)]})
            elif name in _GPM:
                results.append({"value": _metrics(result) if name == _GPM[2] else None})
            else:
                results.append({"value": plain(result)})
            return result

        return call


class ReplayLibrary:
    """Returns the recorded results in order, then repeats the last one."""

    class NVMLError(Exception):
        def __init__(self, value: int, text: str) -> None:
            super().__init__(text)
            self.value = value

    def __init__(self, recording: dict[str, Any]) -> None:
        self._calls: dict[str, list[Any]] = recording["calls"]
        self._next: dict[str, int] = {}
        self._functions = {key.partition("(")[0] for key in self._calls}
        for name, value in recording["constants"].items():
            setattr(self, name, value)

    @classmethod
    def load(cls, path: Path) -> ReplayLibrary:
        return cls(json.loads(path.read_text()))

    def __getattr__(self, name: str) -> Any:
        if name not in self._functions:
            # As in a binding that is older than the function.
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            key = call_name(name, arguments)
            results = self._calls.get(key)
            if not results:
                raise self.NVMLError(3, f"not recorded: {key}")
            index = self._next.get(key, 0)
            self._next[key] = index + 1
            result = results[min(index, len(results) - 1)]
            if "error" in result:
                raise self.NVMLError(result["error"], result["text"])
            if name == "nvmlGpmMetricsGet":
                return _fill(arguments[0], result["value"])
            return result["handle"] if "handle" in result else _objects(result["value"])

        return call

    def c_nvmlGpmMetricsGet_t(self) -> Any:  # noqa: N802
        """The structure of a request, with room for all metrics that are requested."""
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0) for _ in range(64)])


def _metrics(request: Any) -> list[tuple[int, int, float]]:
    return [
        (metric.metricId, metric.nvmlReturn, metric.value)
        for metric in list(request.metrics)[: request.numMetrics]
    ]


def _fill(request: Any, values: list[tuple[int, int, float]]) -> Any:
    """Write recorded metrics into a request; one that was not recorded is not supported."""
    found = {metric: (code, value) for metric, code, value in values}
    for metric in request.metrics[: request.numMetrics]:
        metric.nvmlReturn, metric.value = found.get(metric.metricId, (3, 0.0))
    return request


def call_name(function: str, arguments: Any) -> str:
    if function in _TIMED:
        arguments = arguments[:-1]
    elif function == "nvmlGpmMetricsGet":
        (request,) = arguments
        arguments = [metric.metricId for metric in list(request.metrics)[: request.numMetrics]]
    elif function in _GPM:
        # Which of two samples is used does not matter.
        arguments = arguments[:-1]
    return f"{function}({', '.join(map(str, arguments))})"


def plain(value: Any) -> Any:
    """A result as JSON; C structures become objects of their fields."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, ctypes.Array):
        return [plain(item) for item in value]
    if isinstance(value, ctypes.Union):
        # The numbers of a union are at the same place; NVML's are unsigned.
        return {name: getattr(value, name) for name in ("uiVal", "ullVal")}
    fields = [field[0] for field in getattr(value, "_fields_", ())] or vars(value)
    return {name: plain(getattr(value, name)) for name in fields}


def _objects(value: Any) -> Any:
    if isinstance(value, list):
        return [_objects(item) for item in value]
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _objects(item) for name, item in value.items()})
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the GPUs of this machine for tests."""
    parser = argparse.ArgumentParser(prog="python -m jobsight.agent.samplers.gpu.nvml_replay")
    parser.add_argument("--record", metavar="FILE", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--interval", type=float, default=0.5)
    options = parser.parse_args(arguments)
    try:
        import pynvml

        recording = record(pynvml, options.samples, options.interval)
    except Exception as error:
        print(f"NVML cannot be used: {error}", file=sys.stderr)
        return 1
    try:
        fields = "index,name,utilization.gpu,memory.used,power.draw,clocks.current.sm"
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        done = subprocess.run(command, capture_output=True, timeout=30, check=False, text=True)
        recording["nvidia_smi"] = done.stdout
    except (OSError, subprocess.SubprocessError):
        recording["nvidia_smi"] = None
    options.record.write_text(json.dumps(recording, separators=(",", ":")) + "\n")
    print(f"{len(recording['calls'])} calls and their results are in {options.record}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
