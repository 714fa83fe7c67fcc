"""The table of the metrics: one place that says what each name means, for pages, API and store."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    name: str
    #: A counter only grows, so its rate is what people want to see; a gauge is shown as it is.
    kind: Literal["counter", "gauge"]
    unit: Literal["nanoseconds", "bytes", "count"]
    title: str
    help: str

    @property
    def rate_unit(self) -> str:
        """The unit of what a page draws: the rate of a counter, the value of a gauge."""
        if self.kind == "gauge":
            return self.unit
        return "cores" if self.unit == "nanoseconds" else f"{self.unit} per second"


_TABLE = (
    Metric("cpu.time", "counter", "nanoseconds", "CPU", "CPU time of all processes of the job"),
    Metric("cpu.user", "counter", "nanoseconds", "CPU, user", "CPU time spent in programs"),
    Metric("cpu.system", "counter", "nanoseconds", "CPU, system", "CPU time spent in the kernel"),
    Metric(
        "memory.used",
        "gauge",
        "bytes",
        "Memory used",
        "Charged minus page cache plus shared memory",
    ),
    Metric("memory.current", "gauge", "bytes", "Memory charged", "All memory charged to the job"),
    Metric("memory.anonymous", "gauge", "bytes", "Anonymous memory", "Heap and stack pages"),
    Metric("memory.file", "gauge", "bytes", "Page cache", "Cached file pages, shared memory apart"),
    Metric("memory.shared", "gauge", "bytes", "Shared memory", "tmpfs and System V shared memory"),
    Metric("memory.swap", "gauge", "bytes", "Swap", "Memory moved out to swap"),
    Metric(
        "io.read_characters",
        "counter",
        "bytes",
        "Read",
        "Bytes returned by read calls, page cache and pipes included",
    ),
    Metric(
        "io.written_characters",
        "counter",
        "bytes",
        "Written",
        "Bytes given to write calls, page cache and pipes included",
    ),
    Metric("io.read_bytes", "counter", "bytes", "Read from storage", "Bytes fetched from storage"),
    Metric("io.written_bytes", "counter", "bytes", "Written to storage", "Bytes sent to storage"),
    Metric("io.read_calls", "counter", "count", "Read calls", "Calls of read and its like"),
    Metric("io.write_calls", "counter", "count", "Write calls", "Calls of write and its like"),
    Metric("tasks.processes", "gauge", "count", "Processes", "Live processes of the job"),
    Metric("tasks.threads", "gauge", "count", "Threads", "Live threads of the job"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
