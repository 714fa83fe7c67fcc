"""Readings from the nvidia-smi command.

:class:`NvidiaSmi` is the source for nodes on which NVML cannot be loaded. :class:`PrintedMetrics`
has the metrics that are in no reading, as the command prints them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from jobsight.agent.samplers.gpu.source import Gpu, GpuProcess, GpuReading
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.readings import Background, Errors, run_command
from jobsight.model import SECOND

#: Field of a reading -> nvidia-smi's name and the factor to our unit.
_FIELDS: Final = {
    "utilization": ("utilization.gpu", 1),
    "memory_utilization": ("utilization.memory", 1),
    "memory_used": ("memory.used", 2**20),
    "memory_total": ("memory.total", 2**20),
    "power": ("power.draw", 1000),
    "power_limit": ("power.limit", 1000),
    "temperature": ("temperature.gpu", 1),
    "clock_graphics": ("clocks.current.graphics", 1),
    "clock_sm": ("clocks.current.sm", 1),
    "clock_memory": ("clocks.current.memory", 1),
    "application_graphics": ("clocks.applications.graphics", 1),
    "application_memory": ("clocks.applications.memory", 1),
}
#: A driver that does not know one of the fields refuses the entire query.
_OPTIONAL: Final = ("application_graphics", "application_memory")
#: Running the command costs some 20 ms of CPU time.
_QUERY_INTERVAL: Final = 5 * SECOND

Table = tuple[dict[str, tuple[Gpu, GpuReading]], dict[int, set[str]]]


def parse_number(text: str) -> float | None:
    """The number; None for ``[N/A]``, ``[Not Supported]``, ``[Unknown Error]`` and the like."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if -1e18 < value < 1e18 else None


def parse_gpus(text: str, fields: tuple[str, ...]) -> dict[str, tuple[Gpu, GpuReading]]:
    """Parse lines of index, uuid, name and the fields; other lines are skipped."""
    gpus: dict[str, tuple[Gpu, GpuReading]] = {}
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != 3 + len(fields) or not (words[0].isascii() and words[0].isdigit()):
            continue
        index = int(words[0])
        reading = GpuReading()
        for field, word in zip(fields, words[3:], strict=True):
            value = parse_number(word)
            if value is not None:
                setattr(reading, field, round(value * _FIELDS[field][1]))
        key = str(index)
        gpus[key] = (Gpu(key, index, words[1], words[2]), reading)
    return gpus


def parse_processes(text: str, gpus: dict[str, tuple[Gpu, GpuReading]]) -> dict[int, set[str]]:
    """Parse lines of pid and uuid."""
    keys = {gpu.uuid: key for key, (gpu, _) in gpus.items()}
    processes: dict[int, set[str]] = {}
    for line in text.splitlines():
        pid, _, uuid = line.partition(",")
        key = keys.get(uuid.strip())
        if key is not None and pid.strip().isdigit():
            processes.setdefault(int(pid), set()).add(key)
    return processes


class NvidiaSmi:
    """The last output of the command, which is run again every few seconds."""

    #: The command runs in a thread of its own.
    blocks = False

    def __init__(self, node: Node, command: str, timeout: float, errors: Errors) -> None:
        self._node = node
        self._command = command
        self._timeout = timeout
        self._errors = errors
        self._background: Background[Table] = Background("nvidia-smi")
        self._updated_at: int | None = None
        self._table: Table = ({}, {})
        self._fields = tuple(_FIELDS)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        self._update()
        return tuple(gpu for gpu, _ in self._table[0].values())

    def read(self, gpu: Gpu, *, samples: bool = True, counters: bool = True) -> GpuReading:
        self._update()
        entry = self._table[0].get(gpu.key)
        reading = entry[1] if entry is not None else GpuReading()
        for group in ("profile", "pcie", "nvlink", "throttling", "faults"):
            reading.missing[group] = "nvidia-smi is used because NVML cannot be loaded"
        return reading

    def processes(self, candidates: Collection[int]) -> list[GpuProcess]:
        self._update()
        return [GpuProcess(pid, key) for pid, keys in self._table[1].items() for key in keys]

    def describe(self, gpu: Gpu) -> list[str]:
        return ["utilization, memory and power by nvidia-smi; NVML cannot be loaded"]

    def _update(self) -> None:
        now = self._node.clock()
        if self._updated_at is not None and now - self._updated_at < _QUERY_INTERVAL:
            return
        try:
            table = self._background.run(self._run)
        except (OSError, ValueError) as error:
            # Outdated figures must not be reported as current.
            self._updated_at, self._table = now, ({}, {})
            self._errors.add("nvidia-smi", error)
            return
        if table is not None:
            self._updated_at, self._table = now, table

    def _run(self) -> Table:
        try:
            gpus = self._query(self._fields)
        except OSError:
            if self._fields != tuple(_FIELDS):
                raise
            self._fields = tuple(name for name in _FIELDS if name not in _OPTIONAL)
            gpus = self._query(self._fields)
        options = "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader,nounits"
        return gpus, parse_processes(run_command([self._command, *options], self._timeout), gpus)

    def _query(self, fields: tuple[str, ...]) -> dict[str, tuple[Gpu, GpuReading]]:
        names = ",".join(["index", "uuid", "name", *(_FIELDS[field][0] for field in fields)])
        options = f"--query-gpu={names}", "--format=csv,noheader,nounits"
        gpus = parse_gpus(run_command([self._command, *options], self._timeout), fields)
        if not gpus:
            raise OSError(f"{self._command} lists no GPU")
        return gpus

    def refresh(self) -> None:
        """Each run of the command lists the GPUs."""

    def close(self) -> None:
        """The thread exits with its command."""


_FIELD: Final = re.compile(r"[A-Za-z0-9_.]{1,100}")
_REFUSED_FIELD: Final = re.compile(r'Field "([^"]*)" is not a valid field to query')
_UNIT: Final = re.compile(r" \[[^\]]*\]$")


class Printed(NamedTuple):
    """A value as the command prints it, and the name of its column, without the unit."""

    name: str
    text: str


class PrintedMetrics:
    """Any metrics that ``nvidia-smi --query-gpu`` knows, of all GPUs of the node."""

    def __init__(self, node: Node, command: str, timeout: float, errors: Errors) -> None:
        self._node = node
        self._command = command
        self._timeout = timeout
        self._errors = errors
        self._background: Background[dict[str, dict[str, Printed]]] = Background("nvidia-smi")
        self._names: dict[str, None] = {}
        self._interval = _QUERY_INTERVAL
        self._updated_at: int | None = None
        self._values: dict[str, dict[str, Printed]] = {}

    def request(self, names: Iterable[str], interval: float) -> None:
        """Query these metrics from now on, about every ``interval`` seconds."""
        for name in names:
            if _FIELD.fullmatch(name):
                self._names[name] = None
            else:
                self._ignore(name)
        self._interval = max(_QUERY_INTERVAL, round(interval * SECOND) // 2)

    def _ignore(self, name: str) -> None:
        self._errors.add(f"metric {name}", "nvidia-smi does not know it; it is ignored")

    def values(self, uuid: str) -> dict[str, Printed]:
        """The last values of a GPU, by the name in the request."""
        self.update()
        return self._values.get(uuid, {})

    def update(self) -> None:
        """Run the command if it is due, and take over its output if it has finished."""
        now = self._node.clock()
        due = self._updated_at is None or now - self._updated_at >= self._interval
        if not self._names or not due:
            return
        try:
            values = self._background.run(self._query)
        except (OSError, ValueError) as error:
            self._updated_at, self._values = now, {}
            self._errors.add("nvidia-smi", error)
            return
        if values is not None:
            self._updated_at, self._values = now, values

    def _query(self) -> dict[str, dict[str, Printed]]:
        while self._names:
            names = list(self._names)
            fields = ",".join(["uuid", *names])
            options = f"--query-gpu={fields}", "--format=csv,nounits"
            text = run_command([self._command, *options], self._timeout)
            refused = _REFUSED_FIELD.search(text)
            if refused is None:
                return parse_printed(text, names)
            # One unknown field refuses the entire query.
            if refused[1] not in self._names:
                raise OSError(f"{self._command}: {refused[0]}")
            del self._names[refused[1]]
            self._ignore(refused[1])
        return {}


def parse_printed(text: str, names: list[str]) -> dict[str, dict[str, Printed]]:
    """Parse lines of uuid and values after a line of column names, by uuid and name. A value that
    the GPU does not provide is left out."""
    header, *rows = [line.split(", ") for line in text.splitlines()] or [[]]
    columns = [_UNIT.sub("", column.strip()) for column in header[1:]]
    gpus: dict[str, dict[str, Printed]] = {}
    for uuid, *values in rows:
        if len(values) != len(columns) or len(columns) != len(names):
            continue
        gpus[uuid.strip()] = {
            name: Printed(column, value.strip())
            for name, column, value in zip(names, columns, values, strict=True)
            if value.strip() not in ("", "N/A") and not value.startswith("[")
        }
    return gpus
