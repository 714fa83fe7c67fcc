"""Answers of NVIDIA's library, written down on a machine that has a GPU and replayed elsewhere."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from jobsight.agent.samplers.gpu.nvml import Nvml
from jobsight.agent.samplers.readings import Errors

_HANDLES: Final = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMigDeviceHandleByIndex")
_CONSTANTS: Final = (
    "NVML_CLOCK_GRAPHICS",
    "NVML_CLOCK_SM",
    "NVML_CLOCK_MEM",
    "NVML_TEMPERATURE_GPU",
    "nvmlMemory_v2",
)


class RecordingLibrary:
    """Passes every call on and writes down what came back."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._labels: dict[int, str] = {}
        # Handles are kept, so that no other object gets the number of one of them.
        self._kept: list[Any] = []
        self.NVMLError = library.NVMLError
        self.calls: dict[str, list[Any]] = {}
        self.constants = {n: getattr(library, n) for n in _CONSTANTS if hasattr(library, n)}

    def __getattr__(self, name: str) -> Any:
        if name in self.constants:
            return self.constants[name]
        function = getattr(self._library, name)

        def call(*arguments: Any) -> Any:
            key = call_name(name, [self._labels.get(id(one), one) for one in arguments])
            answers = self.calls.setdefault(key, [])
            try:
                result = function(*arguments)
            except self.NVMLError as error:
                answers.append({"error": error.value, "text": str(error)})
                raise
            if name in _HANDLES:
                self._kept.append(result)
                self._labels[id(result)] = f"gpu{len(self._labels)}"
                answers.append({"handle": self._labels[id(result)]})
            else:
                answers.append({"value": plain(result)})
            return result

        return call


class ReplayLibrary:
    """Gives the recorded answers in their order, the last one again and again."""

    class NVMLError(Exception):
        def __init__(self, value: int, text: str) -> None:
            super().__init__(text)
            self.value = value

    def __init__(self, recording: dict[str, Any]) -> None:
        self._calls: dict[str, list[Any]] = recording["calls"]
        self._next: dict[str, int] = {}
        for name, value in recording["constants"].items():
            setattr(self, name, value)

    @classmethod
    def load(cls, path: Path) -> ReplayLibrary:
        return cls(json.loads(path.read_text()))

    def __getattr__(self, name: str) -> Any:
        if name in _CONSTANTS or not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            key = call_name(name, arguments)
            answers = self._calls.get(key)
            if not answers:
                raise self.NVMLError(3, f"not recorded: {key}")
            place = self._next.get(key, 0)
            self._next[key] = place + 1
            answer = answers[min(place, len(answers) - 1)]
            if "error" in answer:
                raise self.NVMLError(answer["error"], answer["text"])
            return answer["handle"] if "handle" in answer else _objects(answer["value"])

        return call


def call_name(function: str, arguments: Any) -> str:
    return f"{function}({', '.join(map(str, arguments))})"


def plain(value: Any) -> Any:
    """A result as JSON can hold it; structures of C become objects of their fields."""
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    fields = [field[0] for field in getattr(value, "_fields_", ())] or vars(value)
    return {name: plain(getattr(value, name)) for name in fields}


def _objects(value: Any) -> Any:
    if isinstance(value, list):
        return [_objects(one) for one in value]
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _objects(one) for name, one in value.items()})
    return value


def record(library: Any, samples: int, interval: float) -> dict[str, Any]:
    """Ask everything that the sampler asks, so many times."""
    recorder = RecordingLibrary(library)
    errors = Errors()
    source = Nvml(recorder, errors)
    driver = plain(recorder.nvmlSystemGetDriverVersion())
    for number in range(samples):
        if number:
            time.sleep(interval)
        for gpu in source.gpus:
            source.read(gpu)
        source.processes()
    source.close()
    found = {
        "driver": driver,
        "errors": errors.causes,
        "constants": recorder.constants,
        "calls": recorder.calls,
    }
    text = json.dumps(found)
    for number, gpu in enumerate(source.gpus):
        # A recording shows what GPUs say, not which ones they were.
        kind = gpu.uuid.partition("-")[0]
        text = text.replace(gpu.uuid, f"{kind}-00000000-0000-0000-0000-{number:012d}")
    anonymous: dict[str, Any] = json.loads(text)
    return anonymous
