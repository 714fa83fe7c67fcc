"""Readings from the nvidia-smi command, for nodes on which NVML cannot be loaded."""

from __future__ import annotations

from typing import Final

from jobsight.agent.samplers.gpu.nvml import Gpu, GpuReading
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

    def read(self, gpu: Gpu) -> GpuReading:
        self._update()
        entry = self._table[0].get(gpu.key)
        return entry[1] if entry is not None else GpuReading()

    def processes(self) -> dict[int, set[str]]:
        self._update()
        return self._table[1]

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
