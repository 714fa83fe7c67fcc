"""The tables of the archive: every column with its type and its meaning.

Times are timestamps of nanoseconds in UTC, durations are nanoseconds, sizes are bytes. A value that
is not known is NULL. Each file lies under ``TABLE/cluster=NAME/month=YYYY-MM/``, which gives two
more columns.
"""

from __future__ import annotations

import pyarrow as pa

from jobsight.store.schema.tables import SUMMED_FIGURES

TIME = pa.timestamp("ns", "UTC")
NUMBER = pa.int64()
TEXT = pa.string()
FLAG = pa.bool_()

TABLES = ("runs", "nodes", "executables", "steps", "series")


def _schema(*columns: tuple[str, pa.DataType, str]) -> pa.Schema:
    return pa.schema(
        [pa.field(name, kind, metadata={"meaning": meaning}) for name, kind, meaning in columns]
    )


_KEY = (
    ("job_id", NUMBER, "The raw job id; the files are sorted by it."),
    ("start", TIME, "The start of the run, a part of its key."),
    ("part", TEXT, "Names the files that were written together."),
)
_SIGHTING = (
    *_KEY,
    ("sighting", pa.int32(), "Counts the sightings of the run, of which a node has mostly one."),
    ("node", TEXT, "The node's name."),
)

RUNS = _schema(
    *_KEY,
    ("archived", TIME, "When this version was written; the newest one counts."),
    ("withdrawn", FLAG, "The run got another start later, and is to be found under that."),
    ("updated", TIME, "When the run was last changed in the store."),
    ("provisional", FLAG, "The scheduler has given no start; `start` is the birth on the node."),
    ("source", TEXT, "Who told of the run."),
    ("sluid", TEXT, "Slurm's own lasting id, where it gives one."),
    ("restart_count", NUMBER, "How often the job had been requeued."),
    ("array_job_id", NUMBER, "The id of the array."),
    ("array_task_id", NUMBER, "The number within the array."),
    ("het_job_id", NUMBER, "The id of the heterogeneous job."),
    ("het_offset", NUMBER, "The number of the component."),
    ("name", TEXT, "The job's name."),
    ("user", TEXT, "The user's name."),
    ("uid", NUMBER, "The user's number."),
    ("account", TEXT, "The account or project."),
    ("partition", TEXT, "The partition."),
    ("qos", TEXT, "The quality of service."),
    ("command", TEXT, "What was submitted."),
    ("nodes", pa.list_(TEXT), "The nodes that the scheduler names."),
    ("cpus", NUMBER, "CPUs allocated."),
    ("memory", NUMBER, "Memory allocated, in bytes."),
    ("gpus", NUMBER, "GPUs allocated."),
    ("tres", pa.map_(TEXT, NUMBER), "All that was allocated, by Slurm's names."),
    ("time_limit", NUMBER, "The limit of time, in nanoseconds."),
    ("submit", TIME, "When the job was submitted."),
    ("end", TIME, "When the run ended."),
    ("state", TEXT, "The scheduler's last state."),
    ("exit_code", NUMBER, "The exit code."),
    ("exit_signal", NUMBER, "The signal that ended it."),
    ("cpu_time", NUMBER, "CPU time on all nodes, in nanoseconds."),
    ("memory_used_peak", NUMBER, "Highest sampled use of memory, summed over the nodes, in bytes."),
    ("memory_peak", NUMBER, "The kernel's peak, page cache included, summed over the nodes."),
    ("first_seen", TIME, "The first sample."),
    ("last_seen", TIME, "The last sample."),
    ("node_count", NUMBER, "Rows of this run in `nodes`."),
    ("executable_count", NUMBER, "Rows of this run in `executables`."),
    ("step_count", NUMBER, "Rows of this run in `steps`."),
    ("sample_count", NUMBER, "Rows of this run in `series`."),
    ("details", pa.binary(), "What else the scheduler said, as the store keeps it."),
)

NODES = _schema(
    *_SIGHTING,
    ("boot_id", TEXT, "The boot of the node."),
    ("birth", TIME, "When the job's first process or cgroup was born there."),
    ("sluid", TEXT, "As the node saw it."),
    ("restart_count", NUMBER, "As the node saw it."),
    ("epoch", TEXT, "The life of the agent that was heard last."),
    ("written", TIME, "When that agent wrote its last batch."),
    ("final", FLAG, "The agent has seen the end of the job."),
    ("first_sample", TIME, "The first sample."),
    ("last_sample", TIME, "The last sample."),
    ("counted", TIME, "When the figures below were read; NULL where there are none."),
    ("cpu_source", TEXT, "Where the CPU time comes from."),
    ("cpu_time", NUMBER, "CPU time, in nanoseconds."),
    ("cpu_user", NUMBER, "The part spent in programs."),
    ("cpu_system", NUMBER, "The part spent in the kernel."),
    ("cpu_overhead", NUMBER, "The share of slurmstepd, counted apart."),
    ("memory_peak", NUMBER, "The kernel's peak, page cache included, in bytes."),
    ("memory_used_peak", NUMBER, "Highest sampled use, in bytes."),
    ("memory_limit", NUMBER, "The limit of the cgroup, in bytes."),
    ("swap_peak", NUMBER, "Highest use of swap, in bytes."),
    ("oom_kills", NUMBER, "Processes killed for want of memory."),
    ("read_characters", NUMBER, "Bytes through read(2)."),
    ("written_characters", NUMBER, "Bytes through write(2)."),
    ("read_bytes", NUMBER, "Bytes fetched from storage."),
    ("written_bytes", NUMBER, "Bytes sent to storage."),
    ("read_calls", NUMBER, "Calls of read(2)."),
    ("write_calls", NUMBER, "Calls of write(2)."),
    ("processes", NUMBER, "Processes seen."),
    ("executions", NUMBER, "Programs started."),
    ("coverage", TEXT, "How much each group of figures stands for, as JSON."),
    ("metrics", pa.map_(TEXT, TEXT), "The curves in `series` with their type, int64 or double."),
    ("sample_count", NUMBER, "Rows of this sighting in `series`."),
)

_FIGURES = {
    "executions": "How often it was started.",
    "processes": "Processes that ran it.",
    "cpu_time": "CPU time, in nanoseconds.",
    "cpu_user": "The part spent in the program.",
    "cpu_system": "The part spent in the kernel.",
    "cpu_estimated": "The part of the CPU time that was estimated.",
    "read_bytes": "Bytes fetched from storage.",
    "written_bytes": "Bytes sent to storage.",
    "failures": "Executions that ended with an error.",
}

EXECUTABLES = _schema(
    *_SIGHTING,
    ("path", pa.binary(), "The file's path, byte for byte."),
    ("path_text", TEXT, "The same to read: other bytes than printable UTF-8 as `\\xNN`."),
    ("path_known", FLAG, "False where only the command's name is known."),
    ("epoch", NUMBER, "The life of the agent, as a number; figures add up over them."),
    ("sequence", NUMBER, "The batch that brought these figures."),
    *((name, NUMBER, _FIGURES[name]) for name in SUMMED_FIGURES),
    ("peak_memory", NUMBER, "Highest use of memory of one process, in bytes."),
    ("first_seen", TIME, "When it was first seen."),
    ("last_seen", TIME, "When it was last seen."),
)

STEPS = _schema(
    *_SIGHTING,
    ("step", TEXT, "As the scheduler names it: batch, extern, 0, 1 ..."),
    ("tasks", NUMBER, "Tasks on the node."),
    ("cpu_time", NUMBER, "CPU time, in nanoseconds."),
    ("cpu_overhead", NUMBER, "The share of slurmstepd, counted apart."),
    ("memory_peak", NUMBER, "The kernel's peak, in bytes."),
    ("oom_kills", NUMBER, "Processes killed for want of memory."),
    ("first_seen", TIME, "When it was first seen."),
    ("last_seen", TIME, "When it was last seen."),
    ("ended", FLAG, "Its end was seen."),
)

#: A column for each metric follows, under the metric's name.
SERIES = _schema(*_SIGHTING, ("time", TIME, "When the sample was taken."))

SCHEMAS = {
    "runs": RUNS,
    "nodes": NODES,
    "executables": EXECUTABLES,
    "steps": STEPS,
    "series": SERIES,
}


def field_table(table: str) -> str:
    """The columns of a table, for the documents."""
    lines = ["| column | type | meaning |", "|---|---|---|"]
    for field in SCHEMAS[table]:
        lines.append(f"| `{field.name}` | `{field.type}` | {field.metadata[b'meaning'].decode()} |")
    return "\n".join(lines)
