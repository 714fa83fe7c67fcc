"""The metric families: jobsight's, derived from :mod:`jobsight.metrics`, and petricore's.

Exposition, remote write, PromQL queries and the dashboards use this table.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from jobsight.metrics import METRICS, Metric
from jobsight.model import SECOND

Kind = Literal["counter", "gauge", "info", "unknown"]
MEBIBYTE: Final = 2**20

#: Unit of a metric -> base unit in Prometheus, and the divisor.
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
#: First part of a metric name with an item (``gpu.0.power``) -> the label of the item.
_ITEM_LABELS: Final = {
    "cores": "core",
    "device": "device",
    "filesystem": "filesystem",
    "gpu": "gpu",
    "network": "interface",
}
#: Labels of every series of a job, under jobsight's and petricore's names.
JOB_LABELS: Final = ("cluster", "node", "slurm_job")
PETRICORE_LABELS: Final = ("instance", "slurm_job")


class Family(NamedTuple):
    """One metric family."""

    name: str
    kind: Kind
    help: str
    #: The labels in addition to those of every series of a job.
    labels: tuple[str, ...] = ()
    #: The metric that it is derived from, and the divisor.
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
    labels = (_ITEM_LABELS.get(group, group),) if star else ()
    return Family(_own_name(metric, unit), metric.kind, metric.help, labels, metric.name, divisor)


def _table(*families: Family) -> dict[str, Family]:
    return {family.name: family for family in families}


#: jobsight's families by the metric from which each is derived.
OF_METRIC: Final = {metric.name: _own(metric) for metric in METRICS.values()}

INFO: Final = Family(
    "jobsight_job_info",
    "info",
    "Identity of the job, for joins on cluster, node and slurm_job",
    ("user", "account", "partition", "name"),
)
START: Final = Family(
    "jobsight_job_start_time_seconds", "gauge", "Time at which the job was first seen on the node"
)
REQUESTED_CPUS: Final = Family(
    "jobsight_job_requested_cpus", "gauge", "CPUs allocated to the job on all its nodes"
)
REQUESTED_MEMORY: Final = Family(
    "jobsight_job_requested_memory_bytes",
    "gauge",
    "Memory allocated to the job on all its nodes",
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

#: petricore's families. Three have no type: promtool rejects a gauge whose name ends in ``_count``,
#: and the names are fixed.
PETRICORE: Final = _table(
    Family("jobs_cpu_percent", "gauge", "CPU use of the job, percent of one core"),
    Family("jobs_cpu_percent_per_core", "gauge", "CPU use of the job, percent of all its cores"),
    Family("jobs_rss", "gauge", "Memory of the job in MiB", (), "memory.used", MEBIBYTE),
    Family(
        "jobs_spawned_processes", "gauge", "Live processes of the job", (), "tasks.processes", 1
    ),
    Family("jobs_opened_files", "gauge", "Distinct paths opened by the job"),
    Family(
        "jobs_thread_count", "unknown", "Live threads by the name of the program", ("proc_name",)
    ),
    Family("jobs_user_time", "gauge", "CPU time in programs, in s", (), "cpu.user", SECOND),
    Family("jobs_system_time", "gauge", "CPU time in the kernel, in s", (), "cpu.system", SECOND),
    Family("jobs_cpu_time_total", "counter", "CPU time of the job, in s", (), "cpu.time", SECOND),
    Family(
        "jobs_cpu_time_core", "gauge", "CPU time on a core, in s", ("core",), "cores.*.time", SECOND
    ),
    Family("jobs_uses_scratch", "gauge", "1 if the job has used scratch, else 0"),
    Family("jobs_read_mb", "gauge", "MiB read from storage", (), "io.read_bytes", MEBIBYTE),
    Family("jobs_write_mb", "gauge", "MiB written to storage", (), "io.written_bytes", MEBIBYTE),
    Family("jobs_read_count", "unknown", "Read calls of the job", (), "io.read_calls", 1),
    Family("jobs_write_count", "unknown", "Write calls of the job", (), "io.write_calls", 1),
    Family("jobs_gpus_used", "gauge", "1 for each GPU of the job", ("gpuid",)),
)

#: Families of nvidia_smi_exporter, which petricore's pages use; labels ``instance`` and ``gpu``.
NVIDIA_SMI: Final = _table(
    Family("utilization_gpu", "gauge", "Percent of time in which a kernel ran"),
    Family("utilization_memory", "gauge", "Percent of time in which memory was accessed"),
    Family("temperature_gpu", "gauge", "Temperature of the GPU in degrees Celsius"),
    Family("memory_total", "unknown", "Memory of the GPU in MiB"),
    Family("memory_free", "gauge", "Free memory of the GPU in MiB"),
    Family("memory_used", "gauge", "Used memory of the GPU in MiB"),
)

#: petricore's families as written by petricore's own exporter, to read old data: times are in
#: clock ticks, and the number of processes was the number of threads of one task.
_TICK: Final = SECOND // 100
OLD_PETRICORE: Final = {
    family.metric: family._replace(divisor=_TICK)
    if family.name in ("jobs_user_time", "jobs_system_time")
    else family
    for family in PETRICORE.values()
    if family.metric is not None and family.name != "jobs_spawned_processes"
}

#: The agent's own families, with labels ``cluster`` and ``node``.
AGENT: Final = _table(
    Family("jobsight_agent_info", "info", "Version of the agent", ("version",)),
    Family("jobsight_agent_jobs", "gauge", "Jobs that are measured now"),
    Family("jobsight_agent_processes", "gauge", "Processes that are measured now"),
    Family("jobsight_agent_rounds_total", "counter", "Sampling rounds"),
    Family("jobsight_agent_rounds_cpu_seconds_total", "counter", "CPU time of sampling rounds"),
    Family("jobsight_agent_cpu_seconds_total", "counter", "CPU time of the agent"),
    Family("jobsight_agent_resident_memory_bytes", "gauge", "Memory of the agent"),
    Family("jobsight_agent_events", "gauge", "1 if process events are received, else 0"),
    Family("jobsight_agent_event_overruns_total", "counter", "Overruns of the event sockets"),
    Family("jobsight_agent_spool_batches", "gauge", "Batches in the spool"),
    Family("jobsight_agent_spool_bytes", "gauge", "Size of the spool"),
    Family(
        "jobsight_agent_spool_dropped_total",
        "counter",
        "Batches dropped because the spool was full",
    ),
    Family("jobsight_agent_spool_refused_total", "counter", "Batches refused by the server"),
    Family("jobsight_agent_faults_total", "counter", "Internal errors of the agent"),
    Family("jobsight_agent_sampler_errors", "gauge", "Failed readings of the jobs measured now"),
    Family("jobsight_agent_series", "gauge", "Exposed series of jobs"),
    Family("jobsight_agent_series_left_out", "gauge", "Series beyond agent.metrics.max_series"),
    Family("jobsight_agent_scrapes_total", "counter", "Scrapes that were answered"),
    Family("jobsight_agent_push_failures_total", "counter", "Failed requests to a Pushgateway"),
    Family(
        "jobsight_agent_output_lost_records_total",
        "counter",
        "Records of jobs that an output has neither written nor kept",
        ("output",),
    ),
    Family(
        "jobsight_agent_output_refused_records_total",
        "counter",
        "Records of jobs that the receiver of an output refused",
        ("output",),
    ),
    Family(
        "jobsight_agent_output_lost_samples_total",
        "counter",
        "Samples that a full queue dropped, or that an output could not store",
        ("output",),
    ),
    Family(
        "jobsight_agent_remote_write_samples_total",
        "counter",
        "Samples accepted by the remote-write receiver",
    ),
    Family(
        "jobsight_agent_remote_write_dropped_total",
        "counter",
        "Samples refused by the remote-write receiver",
    ),
)

#: The GPUs of all runs in the store, exposed by the server. Gauges: a late or corrected record may
#: lower a sum, which would be the reset of a counter.
CLUSTER_GPUS: Final = _table(
    *(
        Family(f"jobsight_cluster_gpu_{name}", "gauge", help, ("cluster", "partition"))
        for name, help in {
            "held_seconds": "GPU time held by runs",
            "measured_seconds": "GPU time held by runs for which the use is known",
            "used_seconds": "GPU time used by runs: of the multiprocessors, else the utilization",
            "energy_joules": "Energy of the GPUs while runs held them",
        }.items()
    )
)

#: The server's own families, in addition to the cluster metrics.
SERVER: Final = _table(
    Family(
        "jobsight_server_info",
        "info",
        "Version of the server",
        ("version",),
    ),
    Family(
        "jobsight_server_start_time_seconds",
        "gauge",
        "When the server started, in seconds since 1970",
    ),
    Family(
        "jobsight_server_cpu_seconds_total",
        "counter",
        "CPU time of the server",
    ),
    Family(
        "jobsight_server_resident_memory_bytes",
        "gauge",
        "Memory of the server",
    ),
    Family(
        "jobsight_server_batches_total",
        "counter",
        "Batches received, by what became of them",
        ("status",),
    ),
    Family(
        "jobsight_server_values_left_out_total",
        "counter",
        "Values of stored batches that were out of bounds",
    ),
    Family(
        "jobsight_server_batch_age_seconds",
        "gauge",
        "Seconds since a batch was last stored, else since the start",
    ),
    Family(
        "jobsight_server_disk_free_bytes",
        "gauge",
        "Free bytes on the disk of an SQLite store",
    ),
    Family(
        "jobsight_server_certificate_end_time_seconds",
        "gauge",
        "When the certificate of the server ends, in seconds since 1970",
    ),
    Family(
        "jobsight_server_sink_healthy",
        "gauge",
        "Whether the last transfer to the sink succeeded",
        ("sink",),
    ),
    Family(
        "jobsight_server_agents",
        "gauge",
        "Agents that sent a batch within seven days",
        ("cluster",),
    ),
    Family(
        "jobsight_server_agents_silent",
        "gauge",
        "Nodes with jobs whose agent sent nothing for 15 minutes",
        ("cluster",),
    ),
    Family(
        "jobsight_server_agents_clock_skew_seconds",
        "gauge",
        "Largest difference of an agent's clock from the server's",
        ("cluster",),
    ),
    Family(
        "jobsight_server_worker_healthy",
        "gauge",
        "Whether the worker runs, is in time and did not fail last",
        ("worker",),
    ),
    Family(
        "jobsight_server_worker_success_age_seconds",
        "gauge",
        "Seconds since the worker last succeeded, else since its start",
        ("worker",),
    ),
    Family(
        "jobsight_server_worker_calls_total",
        "counter",
        "Calls of the worker since the start of the server",
        ("worker",),
    ),
    Family(
        "jobsight_server_worker_failures_total",
        "counter",
        "Calls of the worker that failed",
        ("worker",),
    ),
    Family(
        "jobsight_server_remote_write_samples_total",
        "counter",
        "Samples accepted by the remote-write receiver",
    ),
    Family(
        "jobsight_server_remote_write_dropped_total",
        "counter",
        "Samples refused by the remote-write receiver",
    ),
    Family("jobsight_server_remote_write_batches", "gauge", "Batches in the remote-write spool"),
    Family(
        "jobsight_server_mails_total",
        "counter",
        "Mails by what became of them: sent, or rejected and set aside",
        ("status",),
    ),
    Family("jobsight_server_mail_queue", "gauge", "Mails in the queue"),
    Family(
        "jobsight_server_remote_write_lost_total",
        "counter",
        "Batches dropped because the spool was full",
    ),
)


def family_of(metric: str) -> tuple[Family, str | None] | None:
    """jobsight's family of a metric, and the item in its name: a GPU, a core, a device."""
    family = OF_METRIC.get(metric)
    if family is not None:
        return family, None
    group, _, rest = metric.partition(".")
    item, _, field = rest.rpartition(".")
    family = OF_METRIC.get(f"{group}.*.{field}") if item else None
    return None if family is None else (family, item)
