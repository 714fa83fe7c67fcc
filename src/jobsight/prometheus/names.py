"""The table of the names in Prometheus: ours, made from the table of the metrics, and petricore's.

Exposition, remote write, reading back and the dashboards all take their names from here.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from jobsight.metrics import METRICS, Metric
from jobsight.model import SECOND

Kind = Literal["counter", "gauge", "info", "unknown"]
MEBIBYTE: Final = 2**20

#: Unit of a metric -> base unit in Prometheus and what a value is divided by.
_UNITS: Final[dict[str, tuple[str, int]]] = {
    "nanoseconds": ("seconds", SECOND),
    "bytes": ("bytes", 1),
    "count": ("", 1),
    "percent": ("ratio", 100),
    "celsius": ("celsius", 1),
    "hertz": ("hertz", 1),
    "microwatts": ("watts", 1_000_000),
    "microjoules": ("joules", 1_000_000),
}
#: What stands between the points of a metric's name -> the label that it becomes.
_THINGS: Final = {
    "cores": "core",
    "device": "device",
    "filesystem": "filesystem",
    "gpu": "gpu",
    "network": "interface",
}
#: On every series of a job under our names, and under petricore's.
JOB_LABELS: Final = ("cluster", "node", "slurm_job")
PETRICORE_LABELS: Final = ("instance", "slurm_job")


class Family(NamedTuple):
    """One name in Prometheus."""

    name: str
    kind: Kind
    help: str
    #: The labels besides those of every series of a job.
    labels: tuple[str, ...] = ()
    #: The metric that it is made from, and what that is divided by.
    metric: str | None = None
    divisor: int = 1


def _own_name(metric: Metric, unit: str) -> str:
    words = [word for part in metric.name.split(".") if part != "*" for word in part.split("_")]
    if unit == "seconds" and words[-1] == "time":
        words.pop()
    if unit and words[-1] != unit:
        words.append(unit)
    if metric.kind == "counter":
        words.append("total")
    return "_".join(["jobsight_job", *words])


def _own(metric: Metric) -> Family:
    unit, divisor = _UNITS[metric.unit]
    group, star, _ = metric.name.partition(".*")
    labels = (_THINGS.get(group, group),) if star else ()
    return Family(_own_name(metric, unit), metric.kind, metric.help, labels, metric.name, divisor)


def _table(*families: Family) -> dict[str, Family]:
    return {family.name: family for family in families}


#: Ours, by the name of the metric that each is made from.
OF_METRIC: Final = {metric.name: _own(metric) for metric in METRICS.values()}

INFO: Final = Family(
    "jobsight_job_info",
    "info",
    "Who the job is: join on cluster, node and slurm_job",
    ("user", "account", "partition", "name"),
)
START: Final = Family(
    "jobsight_job_start_time_seconds", "gauge", "When the job was first seen on the node"
)
REQUESTED_CPUS: Final = Family(
    "jobsight_job_requested_cpus", "gauge", "CPUs that the whole job was given, on all its nodes"
)
REQUESTED_MEMORY: Final = Family(
    "jobsight_job_requested_memory_bytes",
    "gauge",
    "Memory that the whole job was given, on all its nodes",
)
PROGRAM_THREADS: Final = Family(
    "jobsight_job_program_threads", "gauge", "Live threads of a program of the job", ("program",)
)
OWN: Final = _table(
    INFO,
    START,
    REQUESTED_CPUS,
    REQUESTED_MEMORY,
    *OF_METRIC.values(),
    PROGRAM_THREADS,
)

#: petricore's. Three are of no kind: promtool dislikes a gauge that ends in ``_count``, and the
#: names are not ours to change.
PETRICORE: Final = _table(
    Family("jobs_cpu_percent", "gauge", "CPU use of the job, percent of one core"),
    Family("jobs_cpu_percent_per_core", "gauge", "CPU use of the job, percent of all its cores"),
    Family("jobs_rss", "gauge", "Memory of the job in MiB", (), "memory.used", MEBIBYTE),
    Family(
        "jobs_spawned_processes", "gauge", "Live processes of the job", (), "tasks.processes", 1
    ),
    Family("jobs_opened_files", "gauge", "Distinct paths that the job has open"),
    Family(
        "jobs_thread_count", "unknown", "Live threads by the name of the program", ("proc_name",)
    ),
    Family("jobs_user_time", "gauge", "CPU time in programs, in s", (), "cpu.user", SECOND),
    Family("jobs_system_time", "gauge", "CPU time in the kernel, in s", (), "cpu.system", SECOND),
    Family("jobs_cpu_time_total", "counter", "CPU time of the job, in s", (), "cpu.time", SECOND),
    Family(
        "jobs_cpu_time_core", "gauge", "CPU time on a core, in s", ("core",), "cores.*.time", SECOND
    ),
    Family("jobs_uses_scratch", "gauge", "1 when the job has used scratch, else 0"),
    Family("jobs_read_mb", "gauge", "MiB read from storage", (), "io.read_bytes", MEBIBYTE),
    Family("jobs_write_mb", "gauge", "MiB written to storage", (), "io.written_bytes", MEBIBYTE),
    Family("jobs_read_count", "unknown", "Read calls of the job", (), "io.read_calls", 1),
    Family("jobs_write_count", "unknown", "Write calls of the job", (), "io.write_calls", 1),
    Family("jobs_gpus_used", "gauge", "1 for each GPU of the job", ("gpuid",)),
)

#: Those of nvidia_smi_exporter, which petricore's pages read; by ``instance`` and ``gpu`` alone.
PETRICORE_GPU: Final = _table(
    Family("utilization_gpu", "gauge", "Time in which a kernel ran, in percent"),
    Family("utilization_memory", "gauge", "Time in which memory was accessed, in percent"),
    Family("temperature_gpu", "gauge", "Degrees Celsius"),
    Family("memory_total", "unknown", "Memory of the GPU in MiB"),
    Family("memory_free", "gauge", "Free memory of the GPU in MiB"),
    Family("memory_used", "gauge", "Memory in use on the GPU in MiB"),
)

#: Years of petricore's own exporter, read back: it wrote times in ticks of the clock, and called
#: the threads of one task processes.
_TICK: Final = SECOND // 100
OLD_PETRICORE: Final = {
    family.metric: family._replace(divisor=_TICK)
    if family.name in ("jobs_user_time", "jobs_system_time")
    else family
    for family in PETRICORE.values()
    if family.metric is not None and family.name != "jobs_spawned_processes"
}

#: About the agent itself, with the labels cluster and node.
AGENT: Final = _table(
    Family("jobsight_agent_info", "info", "The agent's release", ("version",)),
    Family("jobsight_agent_jobs", "gauge", "Jobs that are followed now"),
    Family("jobsight_agent_processes", "gauge", "Processes that are followed now"),
    Family("jobsight_agent_rounds_total", "counter", "Sampling rounds"),
    Family("jobsight_agent_rounds_cpu_seconds_total", "counter", "CPU time of sampling rounds"),
    Family("jobsight_agent_cpu_seconds_total", "counter", "CPU time of the agent"),
    Family("jobsight_agent_resident_memory_bytes", "gauge", "Memory of the agent"),
    Family("jobsight_agent_events", "gauge", "1 while the kernel tells of processes, else 0"),
    Family("jobsight_agent_event_overruns_total", "counter", "Times that events were lost"),
    Family("jobsight_agent_spool_batches", "gauge", "Batches that wait for the server"),
    Family("jobsight_agent_spool_bytes", "gauge", "Bytes that wait for the server"),
    Family("jobsight_agent_spool_dropped_total", "counter", "Batches given up for want of room"),
    Family("jobsight_agent_spool_refused_total", "counter", "Batches that the server refused"),
    Family("jobsight_agent_faults_total", "counter", "Errors inside of the agent"),
    Family("jobsight_agent_sampler_errors", "gauge", "Failed readings of the jobs followed now"),
    Family("jobsight_agent_series", "gauge", "Series of jobs that are offered now"),
    Family(
        "jobsight_agent_series_left_out", "gauge", "Series left out now: agent.metrics.max_series"
    ),
    Family("jobsight_agent_scrapes_total", "counter", "Answers that were given"),
    Family("jobsight_agent_push_failures_total", "counter", "Failed requests to a Pushgateway"),
    Family(
        "jobsight_agent_remote_write_samples_total", "counter", "Samples that were taken elsewhere"
    ),
    Family(
        "jobsight_agent_remote_write_dropped_total", "counter", "Samples that were refused for good"
    ),
)

#: What the server says of itself beside the gauges of the clusters.
SERVER: Final = _table(
    Family("jobsight_server_remote_write_samples_total", "counter", "Samples taken elsewhere"),
    Family("jobsight_server_remote_write_dropped_total", "counter", "Samples refused for good"),
    Family("jobsight_server_remote_write_batches", "gauge", "Batches that wait to be written"),
    Family(
        "jobsight_server_remote_write_lost_total", "counter", "Batches given up for want of room"
    ),
)


def family_of(metric: str) -> tuple[Family, str | None] | None:
    """Our name of a curve, and the thing that its label names: a GPU, a core, a device."""
    found = OF_METRIC.get(metric)
    if found is not None:
        return found, None
    group, _, rest = metric.partition(".")
    thing, _, figure = rest.rpartition(".")
    found = OF_METRIC.get(f"{group}.*.{figure}") if thing else None
    return None if found is None else (found, thing)
