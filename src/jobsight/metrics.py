"""The definitions of all metrics: kind, unit, title and help text by name."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    name: str
    #: Pages show the rate of a counter and the value of a gauge.
    kind: Literal["counter", "gauge"]
    unit: Literal[
        "nanoseconds", "bytes", "count", "percent", "celsius", "hertz", "microwatts", "microjoules"
    ]
    title: str
    help: str

    @property
    def rate_unit(self) -> str:
        """The unit in charts: of the rate of a counter, of the value of a gauge."""
        if self.kind == "gauge":
            return self.unit
        if self.unit == "microjoules":
            return "microwatts"
        if self.name.startswith("node.pressure."):
            return "share"
        if self.unit == "nanoseconds":
            return "GPUs" if self.name.startswith("gpu.") else "cores"
        return f"{self.unit} per second"


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
    Metric("memory.kernel", "gauge", "bytes", "Kernel memory", "Pages of the kernel for the job"),
    Metric("memory.swap", "gauge", "bytes", "Swap", "Memory moved out to swap"),
    Metric(
        "memory.peak",
        "gauge",
        "bytes",
        "Memory peak",
        "Highest charge, page cache included",
    ),
    Metric(
        "memory.limit",
        "gauge",
        "bytes",
        "Memory limit",
        "Limit of the cgroup",
    ),
    Metric("memory.oom_kills", "counter", "count", "Killed for memory", "Processes killed"),
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
    Metric("io.read_calls", "counter", "count", "Read calls", "Read system calls"),
    Metric("io.write_calls", "counter", "count", "Write calls", "Write system calls"),
    Metric("tasks.processes", "gauge", "count", "Processes", "Live processes of the job"),
    Metric("tasks.threads", "gauge", "count", "Threads", "Live threads of the job"),
    Metric("tasks.running", "gauge", "count", "Threads running", "Threads that run or could run"),
    Metric("tasks.blocked", "gauge", "count", "Threads blocked", "Threads that wait for a device"),
    Metric("cores.*.time", "counter", "nanoseconds", "CPU of a core", "CPU time on one core"),
    Metric("device.*.read_bytes", "counter", "bytes", "Device read", "Bytes read from a device"),
    Metric("device.*.written_bytes", "counter", "bytes", "Device written", "Bytes written to it"),
    Metric("device.*.reads", "counter", "count", "Device reads", "Reads that a device completed"),
    Metric("device.*.writes", "counter", "count", "Device writes", "Writes that it completed"),
    Metric(
        "device.*.busy", "counter", "nanoseconds", "Device busy", "Time with requests in flight"
    ),
    Metric(
        "energy.cpu",
        "counter",
        "microjoules",
        "Energy, CPU",
        "Energy of processors and memory, shared over jobs by CPU time",
    ),
    Metric(
        "energy.node",
        "counter",
        "microjoules",
        "Energy, node",
        "Energy of the whole node, shared over jobs by CPU time",
    ),
    Metric("files.open", "gauge", "count", "Open files", "Open descriptors of all processes"),
    Metric("files.scratch", "gauge", "count", "Scratch files", "Distinct open files on scratch"),
    Metric("filesystem.*.size", "gauge", "bytes", "File system", "Size of a file system"),
    Metric("filesystem.*.free", "gauge", "bytes", "File system, free", "Free space"),
    Metric("filesystem.*.used", "gauge", "bytes", "File system, used", "Used space"),
    Metric("gpu.held", "gauge", "count", "GPUs", "GPUs that belong to the job"),
    Metric("gpu.idle", "gauge", "count", "GPUs idle", "GPUs of the job without activity"),
    Metric(
        "gpu.*.utilization",
        "gauge",
        "percent",
        "GPU utilization",
        "Time in which any kernel or copy ran, however small, since the last sample",
    ),
    Metric(
        "gpu.*.multiprocessor_time",
        "counter",
        "nanoseconds",
        "GPU multiprocessors",
        "Share of the multiprocessors that were busy, integrated over time",
    ),
    Metric(
        "gpu.*.occupancy_time",
        "counter",
        "nanoseconds",
        "GPU occupancy",
        "Share of the warps that the multiprocessors can hold, integrated over time",
    ),
    Metric(
        "gpu.*.tensor_time",
        "counter",
        "nanoseconds",
        "GPU tensor cores",
        "Share of the tensor cores' cycles that were used, integrated over time",
    ),
    Metric("gpu.*.fp64_time", "counter", "nanoseconds", "GPU FP64", "Share of the FP64 units"),
    Metric("gpu.*.fp32_time", "counter", "nanoseconds", "GPU FP32", "Share of the FP32 units"),
    Metric("gpu.*.fp16_time", "counter", "nanoseconds", "GPU FP16", "Share of the FP16 units"),
    Metric(
        "gpu.*.bandwidth_time",
        "counter",
        "nanoseconds",
        "GPU memory bandwidth",
        "Share of the memory's bandwidth that was used, integrated over time",
    ),
    Metric(
        "gpu.*.pcie_received_bytes",
        "counter",
        "bytes",
        "GPU received by PCIe",
        "Bytes on the bus, packet headers included",
    ),
    Metric(
        "gpu.*.pcie_sent_bytes",
        "counter",
        "bytes",
        "GPU sent by PCIe",
        "Bytes on the bus, packet headers and read requests included",
    ),
    Metric(
        "gpu.*.nvlink_received_bytes",
        "counter",
        "bytes",
        "GPU received by NVLink",
        "Bytes from other GPUs",
    ),
    Metric(
        "gpu.*.nvlink_sent_bytes", "counter", "bytes", "GPU sent by NVLink", "Bytes to other GPUs"
    ),
    Metric(
        "gpu.*.throttled_time",
        "counter",
        "nanoseconds",
        "GPU throttled",
        "Time with reduced clocks, for the reason that held longest",
    ),
    Metric(
        "gpu.*.memory_utilization",
        "gauge",
        "percent",
        "GPU memory access",
        "Time in which the GPU's memory was read or written",
    ),
    Metric("gpu.*.memory_used", "gauge", "bytes", "GPU memory", "Memory in use on a GPU"),
    Metric("gpu.*.power", "gauge", "microwatts", "GPU power", "Power that a GPU draws"),
    Metric("gpu.*.energy", "counter", "microjoules", "GPU energy", "By the driver's counter"),
    Metric("gpu.*.temperature", "gauge", "celsius", "GPU temperature", "Temperature of a GPU"),
    Metric("gpu.*.clock", "gauge", "hertz", "GPU clock", "Clock of the multiprocessors"),
    Metric("network.*.received_bytes", "counter", "bytes", "Received", "Bytes the node received"),
    Metric("network.*.sent_bytes", "counter", "bytes", "Sent", "Bytes the node sent"),
    Metric("network.*.received_packets", "counter", "count", "Packets received", "Of the node"),
    Metric("network.*.sent_packets", "counter", "count", "Packets sent", "Of the node"),
    Metric("network.*.errors", "counter", "count", "Network errors", "Faulty packets received"),
    Metric(
        "pressure.cpu",
        "counter",
        "nanoseconds",
        "Waiting for CPU",
        "Time in which at least one process waited for a CPU",
    ),
    Metric(
        "pressure.memory",
        "counter",
        "nanoseconds",
        "Waiting for memory",
        "Time in which at least one process waited for memory",
    ),
    Metric(
        "pressure.memory_full",
        "counter",
        "nanoseconds",
        "Stopped for memory",
        "Time in which all processes waited for memory",
    ),
    Metric(
        "pressure.io",
        "counter",
        "nanoseconds",
        "Waiting for I/O",
        "Time in which at least one process waited for I/O",
    ),
    Metric(
        "pressure.io_full",
        "counter",
        "nanoseconds",
        "Stopped for I/O",
        "Time in which all processes waited for I/O",
    ),
)

#: Of jobs, by name. A star stands for the name of an instance: ``gpu.*.power`` for ``gpu.0.power``.
METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}

_NODE_TABLE = (
    Metric("node.load.1m", "gauge", "count", "Load", "Load average over one minute"),
    Metric("node.load.5m", "gauge", "count", "Load, 5 min", "Load average over five minutes"),
    Metric("node.load.15m", "gauge", "count", "Load, 15 min", "Load average over 15 minutes"),
    Metric("node.cpu.user", "counter", "nanoseconds", "CPU, user", "CPU time spent in programs"),
    Metric(
        "node.cpu.system",
        "counter",
        "nanoseconds",
        "CPU, system",
        "CPU time spent in the kernel, interrupts included",
    ),
    Metric(
        "node.cpu.iowait",
        "counter",
        "nanoseconds",
        "CPU, waiting for I/O",
        "Time in which a CPU was idle while a thread of it waited for a device",
    ),
    Metric("node.cpu.idle", "counter", "nanoseconds", "CPU, idle", "Idle time of all CPUs"),
    Metric(
        "node.cpu.stolen",
        "counter",
        "nanoseconds",
        "CPU, stolen",
        "Time in which a virtual CPU was ready and the host ran something else",
    ),
    Metric("node.memory.total", "gauge", "bytes", "Memory", "Memory of the node"),
    Metric("node.memory.used", "gauge", "bytes", "Memory used", "Total minus available memory"),
    Metric(
        "node.memory.available",
        "gauge",
        "bytes",
        "Memory available",
        "What programs can get without swapping, by the estimate of the kernel",
    ),
    Metric(
        "node.memory.cache",
        "gauge",
        "bytes",
        "Page cache",
        "Cached file pages, buffers and reclaimable kernel memory",
    ),
    Metric("node.swap.total", "gauge", "bytes", "Swap", "Swap space of the node"),
    Metric("node.swap.used", "gauge", "bytes", "Swap used", "Memory moved out to swap"),
    Metric(
        "node.network.received_bytes",
        "counter",
        "bytes",
        "Received",
        "Bytes received, summed over the physical links",
    ),
    Metric(
        "node.network.sent_bytes",
        "counter",
        "bytes",
        "Sent",
        "Bytes sent, summed over the physical links",
    ),
    Metric(
        "node.network.received_packets",
        "counter",
        "count",
        "Packets received",
        "Packets received, summed over the physical links",
    ),
    Metric(
        "node.network.sent_packets",
        "counter",
        "count",
        "Packets sent",
        "Packets sent, summed over the physical links",
    ),
    Metric(
        "node.disk.read_bytes",
        "counter",
        "bytes",
        "Disks read",
        "Bytes read, summed over the physical block devices",
    ),
    Metric(
        "node.disk.written_bytes",
        "counter",
        "bytes",
        "Disks written",
        "Bytes written, summed over the physical block devices",
    ),
    Metric("node.energy.cpu", "counter", "microjoules", "Energy, CPU", "Of processors and memory"),
    Metric("node.energy.node", "counter", "microjoules", "Energy, node", "Of the whole node"),
    Metric(
        "node.pressure.cpu",
        "counter",
        "nanoseconds",
        "Waiting for CPU",
        "Time in which at least one process of the node waited for a CPU",
    ),
    Metric(
        "node.pressure.memory",
        "counter",
        "nanoseconds",
        "Waiting for memory",
        "Time in which at least one process of the node waited for memory",
    ),
    Metric(
        "node.pressure.memory_full",
        "counter",
        "nanoseconds",
        "Stopped for memory",
        "Time in which all processes of the node waited for memory",
    ),
    Metric(
        "node.pressure.io",
        "counter",
        "nanoseconds",
        "Waiting for I/O",
        "Time in which at least one process of the node waited for I/O",
    ),
    Metric(
        "node.pressure.io_full",
        "counter",
        "nanoseconds",
        "Stopped for I/O",
        "Time in which all processes of the node waited for I/O",
    ),
)

#: Of a node as a whole, whatever runs on it; see jobsight.agent.samplers.whole_node.
NODE_METRICS: dict[str, Metric] = {metric.name: metric for metric in _NODE_TABLE}


def find_metric(name: str) -> Metric | None:
    """The metric of a time series by its name, which may contain an instance: a GPU, a device.

    The name of the instance is between the first and the last dot and may contain dots.
    """
    metric = METRICS.get(name) or NODE_METRICS.get(name)
    if metric is not None:
        return metric
    group, _, rest = name.partition(".")
    instance, _, figure = rest.rpartition(".")
    return METRICS.get(f"{group}.*.{figure}") if instance else None
