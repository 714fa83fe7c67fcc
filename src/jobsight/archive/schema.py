"""The tables of the archive: every column with its type and meaning.

Times are Arrow timestamps, durations are decimal seconds (exact to the nanosecond), sizes are
bytes, and the unit is part of the column's name. An unknown value is NULL. Rows of the store are
converted by :func:`to_table` and back by :func:`to_rows`. Files are in
``TABLE/cluster=NAME/month=YYYY-MM/``, which gives two more columns.

:func:`views` has the DuckDB views with the newest version of each run only. Time series have one
column per metric, which is the smallest layout and the fastest to query. A column is named after
its metric and has the metric's own unit. If the name is not free (a key, the same metric with
another type, or a name that differs in case only, which SQL does not distinguish), the type is
appended; the field's metadata has the metric's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from jobsight.config.settings import ArchiveSettings
from jobsight.errors import ConfigError
from jobsight.metrics import find_metric
from jobsight.model import MISSING
from jobsight.store.schema.statements import SUMMED_FIGURES
from jobsight.store.series.blocks import SeriesBlock, present
from jobsight.store.series.packing import Values

TIME = pa.timestamp("ns", "UTC")
NUMBER = pa.int64()
#: Nanoseconds in the store.
SECONDS = pa.decimal128(19, 9)
#: Microjoules in the store.
JOULES = pa.decimal128(19, 6)
TEXT = pa.string()
FLAG = pa.bool_()

TABLES = ("runs", "nodes", "executables", "steps", "gpus", "findings", "series")


#: Columns whose name differs from that of the stored field, because it includes the unit.
OUTER_NAMES = {
    "cpu_time": "cpu_seconds",
    "cpu_user": "cpu_user_seconds",
    "cpu_system": "cpu_system_seconds",
    "cpu_overhead": "overhead_seconds",
    "cpu_estimated": "cpu_estimated_seconds",
    "time_limit": "time_limit_seconds",
    "memory": "memory_bytes",
    "memory_peak": "memory_kernel_peak_bytes",
    "memory_used_peak": "memory_used_peak_bytes",
    "memory_limit": "memory_limit_bytes",
    "swap_peak": "swap_peak_bytes",
    "peak_memory": "peak_memory_bytes",
    "read_characters": "syscall_read_bytes",
    "written_characters": "syscall_written_bytes",
    "read_bytes": "storage_read_bytes",
    "written_bytes": "storage_written_bytes",
    "gpu_time": "gpu_seconds",
    "gpu_memory_peak": "gpu_memory_peak_bytes",
    "gpu_held_time": "gpu_held_seconds",
    "gpu_measured_time": "gpu_measured_seconds",
    "gpu_profiled_time": "gpu_profiled_seconds",
    "gpu_used_time": "gpu_used_seconds",
    "gpu_energy": "gpu_energy_joules",
    "held_time": "held_seconds",
    "active_time": "active_seconds",
    "multiprocessor_time": "multiprocessor_seconds",
    "occupancy_time": "occupancy_seconds",
    "tensor_time": "tensor_seconds",
    "fp64_time": "fp64_seconds",
    "fp32_time": "fp32_seconds",
    "fp16_time": "fp16_seconds",
    "bandwidth_time": "bandwidth_seconds",
    "memory_total": "memory_total_bytes",
    "memory_time": "memory_byte_seconds",
    "energy": "energy_joules",
}
_INNER_NAMES = {outer: inner for inner, outer in OUTER_NAMES.items()}


def inner_name(column: str) -> str:
    """The stored field of a column."""
    return _INNER_NAMES.get(column, column)


def _schema(*columns: tuple[str, pa.DataType, str]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(OUTER_NAMES.get(name, name), kind, metadata={"meaning": meaning})
            for name, kind, meaning in columns
        ]
    )


def to_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows of the store, in its names and units, as a table of the archive."""
    arrays = []
    for field in schema:
        name = inner_name(field.name)
        values = [row.get(name) for row in rows]
        scaled = field.type in (SECONDS, JOULES)
        arrays.append(_decimals(values, field.type) if scaled else pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table in the names and units of the store."""
    columns: dict[str, list[Any]] = {}
    for field in table.schema:
        column = table.column(field.name)
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.int64())
        values = column.to_pylist()
        if pa.types.is_decimal(field.type):
            scale = field.type.scale
            values = [None if value is None else int(value.scaleb(scale)) for value in values]
        columns[inner_name(field.name)] = values
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _decimals(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Nanoseconds or microjoules as decimals, without a Python object per value."""
    known = np.array([value is not None for value in values], np.bool_)
    low = np.array([value or 0 for value in values], np.int64)
    words = np.column_stack([low, low >> 63])
    validity = pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(low), [validity, pa.py_buffer(words)])


_KEY = (
    ("job_id", NUMBER, "The raw job id; the files are sorted by it."),
    ("start", TIME, "The start of the run, a part of its key."),
    ("part", TEXT, "Names the files that were written together."),
)
_SIGHTING = (
    *_KEY,
    ("sighting", pa.int32(), "Number of the sighting within the run; a node usually has one."),
    ("node", TEXT, "The node's name."),
)

RUNS = _schema(
    *_KEY,
    ("archived", TIME, "When this version was written; the newest one counts."),
    ("withdrawn", FLAG, "The run got another start later and is archived under that."),
    ("updated", TIME, "When the run was last changed in the store."),
    ("provisional", FLAG, "No start from the scheduler; `start` is the creation time on the node."),
    ("source", TEXT, "The source of the run."),
    ("sluid", TEXT, "Slurm's SLUID, if it assigns one."),
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
    ("command", TEXT, "The submitted command."),
    ("nodes", pa.list_(TEXT), "The nodes, as given by the scheduler."),
    ("cpus", NUMBER, "CPUs allocated."),
    ("memory", NUMBER, "Memory allocated."),
    ("gpus", NUMBER, "GPUs allocated."),
    ("tres", pa.map_(TEXT, NUMBER), "All allocated resources, by Slurm's names."),
    ("time_limit", SECONDS, "The time limit."),
    ("submit", TIME, "When the job was submitted."),
    ("end", TIME, "When the run ended."),
    ("state", TEXT, "The scheduler's last state."),
    ("exit_code", NUMBER, "The exit code."),
    ("exit_signal", NUMBER, "The signal that ended it."),
    ("cpu_time", SECONDS, "CPU time on all nodes."),
    ("memory_used_peak", NUMBER, "Highest sampled memory use, summed over the nodes."),
    ("memory_peak", NUMBER, "The kernel's peak, page cache included, summed over the nodes."),
    ("first_seen", TIME, "The first sample."),
    ("last_seen", TIME, "The last sample."),
    ("gpu_count", NUMBER, "GPUs that the nodes reported."),
    ("gpu_unused_count", NUMBER, "GPUs that the run never used."),
    ("gpu_held_time", SECONDS, "How long the GPUs were held, summed."),
    ("gpu_measured_time", SECONDS, "The part of it for which the use is known."),
    ("gpu_profiled_time", SECONDS, "The part of that whose use is that of the multiprocessors."),
    ("gpu_used_time", SECONDS, "GPU time used: multiprocessors where known, else active time."),
    ("gpu_memory_peak", NUMBER, "Highest GPU memory use, summed over the GPUs."),
    ("gpu_energy", JOULES, "Energy of the GPUs."),
    ("node_count", NUMBER, "Rows of this run in `nodes`."),
    ("executable_count", NUMBER, "Rows of this run in `executables`."),
    ("step_count", NUMBER, "Rows of this run in `steps`."),
    ("gpu_row_count", NUMBER, "Rows of this run in `gpus`."),
    ("finding_count", NUMBER, "Rows of this run in `findings`."),
    ("sample_count", NUMBER, "Rows of this run in `series`."),
    ("details", pa.binary(), "Further fields of the scheduler, as encoded in the store."),
)

NODES = _schema(
    *_SIGHTING,
    ("boot_id", TEXT, "The boot id of the node."),
    ("birth", TIME, "When the job's cgroup or first process was created there."),
    ("sluid", TEXT, "As the node saw it."),
    ("restart_count", NUMBER, "As the node saw it."),
    ("epoch", TEXT, "The agent epoch that reported last."),
    ("written", TIME, "When the agent wrote its last batch."),
    ("final", FLAG, "The agent has seen the end of the job."),
    ("first_sample", TIME, "The first sample."),
    ("last_sample", TIME, "The last sample."),
    ("counted", TIME, "When the figures below were read; NULL if there are none."),
    ("cpu_source", TEXT, "Where the CPU time comes from."),
    ("cpu_time", SECONDS, "CPU time."),
    ("cpu_user", SECONDS, "CPU time in user mode."),
    ("cpu_system", SECONDS, "CPU time in the kernel."),
    ("cpu_overhead", SECONDS, "The share of slurmstepd, counted apart."),
    ("memory_peak", NUMBER, "The kernel's peak, page cache included."),
    ("memory_used_peak", NUMBER, "Highest sampled use."),
    ("memory_limit", NUMBER, "The limit of the cgroup."),
    ("swap_peak", NUMBER, "Highest use of swap."),
    ("oom_kills", NUMBER, "Processes killed by the OOM killer."),
    ("read_characters", NUMBER, "Bytes through read(2)."),
    ("written_characters", NUMBER, "Bytes through write(2)."),
    ("read_bytes", NUMBER, "Bytes fetched from storage."),
    ("written_bytes", NUMBER, "Bytes sent to storage."),
    ("read_calls", NUMBER, "Calls of read(2)."),
    ("write_calls", NUMBER, "Calls of write(2)."),
    ("processes", NUMBER, "Processes seen."),
    ("executions", NUMBER, "Programs started."),
    ("coverage", TEXT, "The coverage of each group of figures, as JSON."),
    ("metrics", pa.map_(TEXT, TEXT), "The metrics in `series` with their type, int64 or double."),
    ("sample_count", NUMBER, "Rows of this sighting in `series`."),
)

_FIGURES = {
    "executions": "Executions.",
    "processes": "Processes that ran it.",
    "cpu_time": "CPU time.",
    "cpu_user": "CPU time in user mode.",
    "cpu_system": "CPU time in the kernel.",
    "cpu_estimated": "The part of the CPU time that was estimated.",
    "read_bytes": "Bytes fetched from storage.",
    "written_bytes": "Bytes sent to storage.",
    "failures": "Executions that ended with an error.",
    "gpu_time": "Active time of the run's GPUs, attributed to its processes.",
}

EXECUTABLES = _schema(
    *_SIGHTING,
    ("path", pa.binary(), "The file's path, byte for byte."),
    ("path_text", TEXT, "The path as text: bytes that are not printable UTF-8 as `\\xNN`."),
    ("path_known", FLAG, "False if only the command name is known."),
    ("own_namespace", FLAG, "The path is that of a mount namespace other than the node's."),
    ("epoch", NUMBER, "The agent epoch, as a number; figures add up over epochs."),
    ("sequence", NUMBER, "The sequence number of the batch with these figures."),
    *(
        (name, SECONDS if name.startswith(("cpu_", "gpu_")) else NUMBER, _FIGURES[name])
        for name in SUMMED_FIGURES
    ),
    ("peak_memory", NUMBER, "Highest memory use of one process."),
    ("gpu_memory_peak", NUMBER, "Highest GPU memory use of one process."),
    ("first_seen", TIME, "When it was first seen."),
    ("last_seen", TIME, "When it was last seen."),
)

STEPS = _schema(
    *_SIGHTING,
    ("step", TEXT, "As the scheduler names it: batch, extern, 0, 1 ..."),
    ("tasks", NUMBER, "Tasks on the node."),
    ("cpu_time", SECONDS, "CPU time."),
    ("cpu_overhead", SECONDS, "The share of slurmstepd, counted apart."),
    ("memory_peak", NUMBER, "The kernel's peak."),
    ("oom_kills", NUMBER, "Processes killed by the OOM killer."),
    ("gpu_time", SECONDS, "Active time of the run's GPUs, attributed to the step's processes."),
    ("gpu_memory_peak", NUMBER, "Highest GPU memory use of the step's processes at one sample."),
    ("first_seen", TIME, "When it was first seen."),
    ("last_seen", TIME, "When it was last seen."),
    ("ended", FLAG, "Its end was seen."),
)

GPUS = _schema(
    *_SIGHTING,
    ("key", TEXT, "The index of the GPU; `0:1` is a MIG instance."),
    ("epoch", NUMBER, "The agent epoch, as a number; figures add up over epochs."),
    ("sequence", NUMBER, "The sequence number of the batch with these figures."),
    ("uuid", TEXT, "The GPU's UUID."),
    ("name", TEXT, "The model."),
    ("parent", TEXT, "Of a MIG instance: the key of its GPU."),
    ("first_seen", TIME, "When it was first seen."),
    ("last_seen", TIME, "When it was last seen."),
    ("held_time", SECONDS, "How long the run held it."),
    ("used", FLAG, "Whether a process of the run ever used it; NULL if not known."),
    ("shared", FLAG, "Other jobs used it at the same time."),
    ("active_time", SECONDS, "Time in which any kernel ran (utilization)."),
    ("multiprocessor_time", SECONDS, "Share of busy multiprocessors, over time."),
    ("occupancy_time", SECONDS, "Share of the warps in use, over time."),
    ("tensor_time", SECONDS, "Share of the tensor cores, over time."),
    ("fp64_time", SECONDS, "Share of the FP64 units, over time."),
    ("fp32_time", SECONDS, "Share of the FP32 units, over time."),
    ("fp16_time", SECONDS, "Share of the FP16 units, over time."),
    ("bandwidth_time", SECONDS, "Share of the memory bandwidth, over time."),
    ("memory_total", NUMBER, "The GPU's memory."),
    ("memory_peak", NUMBER, "Highest memory use."),
    ("memory_time", NUMBER, "Memory in use, over time."),
    ("energy", JOULES, "Energy."),
    ("pcie_received_bytes", NUMBER, "Bytes received over PCIe."),
    ("pcie_sent_bytes", NUMBER, "Bytes sent over PCIe."),
    ("nvlink_received_bytes", NUMBER, "Bytes received over NVLink."),
    ("nvlink_sent_bytes", NUMBER, "Bytes sent over NVLink."),
    ("throttled_time", TEXT, "Nanoseconds with reduced clocks by reason, as JSON."),
    ("faults", TEXT, "Errors that the GPU reported, as JSON."),
    ("coverage", TEXT, "The coverage of each group of figures, as JSON."),
)

REAL = pa.float64()
FINDINGS = _schema(
    *_KEY,
    ("kind", TEXT, "The name of the rule."),
    ("severity", TEXT, "info, warning or critical."),
    ("audience", TEXT, "user or staff."),
    ("finding_state", TEXT, "open, acknowledged, not helpful, gone or withheld."),
    ("first", TIME, "When the rule first held."),
    ("last", TIME, "When the finding last changed."),
    ("core_hours", REAL, "Core hours held without use."),
    ("gpu_hours", REAL, "GPU hours held without use."),
    ("memory_gb_hours", REAL, "10^9 bytes of memory held for an hour without use."),
    ("energy_kwh", REAL, "Energy without use."),
    ("weight", NUMBER, "The costs as one number, for ordering."),
    ("title", TEXT, "A few words."),
    ("text", TEXT, "One or two sentences with the figures."),
    ("change", TEXT, "The line to change."),
    ("reply_user", TEXT, "Who has replied to it."),
    ("reply_time", TIME, "When."),
    ("data", pa.binary(), "The whole finding, as encoded in the store."),
)

#: A column for each metric follows, under the metric's name.
SERIES = _schema(*_SIGHTING, ("time", TIME, "When the sample was taken."))

SCHEMAS = {
    "runs": RUNS,
    "nodes": NODES,
    "executables": EXECUTABLES,
    "steps": STEPS,
    "gpus": GPUS,
    "findings": FINDINGS,
    "series": SERIES,
}


def field_table(table: str) -> str:
    """The columns of a table, for the documents."""
    lines = ["| column | type | meaning |", "|---|---|---|"]
    for field in SCHEMAS[table]:
        lines.append(f"| `{field.name}` | `{field.type}` | {field.metadata[b'meaning'].decode()} |")
    return "\n".join(lines)


_RUNS = """CREATE OR REPLACE VIEW runs AS
SELECT * FROM (
    SELECT * FROM {files}
    QUALIFY row_number() OVER (
        PARTITION BY cluster, month, job_id, start ORDER BY archived DESC
    ) = 1
) WHERE NOT withdrawn;"""
_OTHER = """CREATE OR REPLACE VIEW {table} AS
SELECT * FROM {files}
SEMI JOIN runs USING (cluster, month, part, job_id, start);"""


def views(settings: ArchiveSettings) -> str:
    """SQL statements that create the views in DuckDB."""
    if settings.location is None:
        raise ConfigError("there is no archive: set archive.location")
    location = settings.location.rstrip("/")
    statements = list(_secret(settings)) if location.startswith("s3://") else []
    for table in TABLES:
        name = quoted(f"{location}/{table}/*/*/*.parquet")
        # Months differ in their metrics, and releases in their columns.
        options = ["hive_types = {cluster: VARCHAR, month: VARCHAR}", "union_by_name = true"]
        files = f"read_parquet({name}, {', '.join(options)})"
        statements.append((_RUNS if table == "runs" else _OTHER).format(table=table, files=files))
    return "\n".join(statements)


def quoted(text: str) -> str:
    """A string constant of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _secret(settings: ArchiveSettings) -> list[str]:
    """The S3 service for DuckDB, which reads the keys from the environment."""
    options = ["TYPE s3", "PROVIDER credential_chain"]
    if settings.s3.endpoint is not None:
        scheme, _, host = settings.s3.endpoint.partition("://")
        options += [
            f"ENDPOINT {quoted(host)}",
            "URL_STYLE 'path'",
            f"USE_SSL {str(scheme == 'https').lower()}",
        ]
    if settings.s3.region is not None:
        options.append(f"REGION {quoted(settings.s3.region)}")
    return [f"CREATE OR REPLACE SECRET jobsight ({', '.join(options)});"]


#: Values (rows times metrics) of one row group, the unit in which time series are read.
GROUP_VALUES = 1 << 20
#: Metrics in one file; more start another file.
MAX_METRICS = 2000

INTEGER, FLOAT = "int64", "double"
_TYPES = {INTEGER: pa.int64(), FLOAT: pa.float64()}
_TAKEN = frozenset({*SERIES.names, "cluster", "month"})


class Metric(NamedTuple):
    """A metric with the type of its values."""

    name: str
    kind: str


class Segment(NamedTuple):
    """Time series of one sighting, with its key."""

    job_id: int
    start: int
    part: str
    sighting: int
    node: str
    block: SeriesBlock


def metrics_of(block: SeriesBlock) -> dict[str, str]:
    """The types of the metrics."""
    return {
        name: INTEGER if values.dtype.kind == "i" else FLOAT
        for name, values in block.columns.items()
    }


def wide_schema(metrics: Iterable[Metric]) -> pa.Schema:
    """The key columns and a column for each metric."""
    taken = set(_TAKEN)
    fields = list(SERIES)
    for metric in sorted(metrics):
        name = next(name for name in _names(metric) if name.casefold() not in taken)
        taken.add(name.casefold())
        known = find_metric(metric.name)
        metadata = {"metric": metric.name, "meaning": known.help if known else ""}
        fields.append(pa.field(name, _TYPES[metric.kind], metadata=metadata))
    return pa.schema(fields)


def _names(metric: Metric) -> Iterator[str]:
    yield metric.name
    number = 1
    while True:
        yield f"{metric.name} ({metric.kind})" + (f" {number}" if number > 1 else "")
        number += 1


def columns_of(schema: pa.Schema) -> dict[Metric, str]:
    """The column of each metric."""
    columns = {}
    for field in schema:
        name = (field.metadata or {}).get(b"metric")
        if name is not None:
            kind = INTEGER if field.type == pa.int64() else FLOAT
            columns[Metric(name.decode(), kind)] = field.name
    return columns


def wide_table(segments: list[Segment], schema: pa.Schema) -> pa.Table:
    """The rows of segments, in their order."""
    lengths = [len(segment.block.times) for segment in segments]
    arrays: list[pa.Array] = [
        _repeated([getattr(segment, field.name) for segment in segments], lengths, field.type)
        for field in schema
        if field.name in Segment._fields
    ]
    times = np.concatenate([segment.block.times for segment in segments])
    arrays.append(pa.array(times).cast(schema.field("time").type))
    for metric in columns_of(schema):
        arrays.append(_column(segments, metric))
    return pa.Table.from_arrays(arrays, schema=schema)


def _repeated(values: list[Any], lengths: list[int], kind: pa.DataType) -> pa.Array:
    indices = np.repeat(np.arange(len(values)), lengths)
    return pa.array(values, kind).take(pa.array(indices))


def _column(segments: list[Segment], metric: Metric) -> pa.Array:
    parts, masks = [], []
    for segment in segments:
        rows = len(segment.block.times)
        values = segment.block.columns.get(metric.name)
        if values is None or metrics_of(segment.block)[metric.name] != metric.kind:
            parts.append(np.zeros(rows, np.int64 if metric.kind == INTEGER else np.float64))
            masks.append(np.ones(rows, np.bool_))
        else:
            parts.append(values)
            # NaN is a value: infinities and the bits of a NaN are preserved.
            floating = metric.kind == FLOAT
            masks.append(np.zeros(rows, np.bool_) if floating else ~present(values))
    return pa.array(np.concatenate(parts), mask=np.concatenate(masks), from_pandas=False)


def series_of(table: pa.Table, metrics: dict[Metric, str]) -> SeriesBlock:
    """The time series in the rows of one sighting, bit for bit."""
    times = table.column("time").cast(pa.int64()).to_numpy()
    return SeriesBlock(times, {metric.name: _values(table, metrics[metric]) for metric in metrics})


def _values(table: pa.Table, column: str) -> Values:
    # Within one sighting a column of floats has a value in every row or in none.
    data = table.column(column)
    if data.null_count:
        data = data.fill_null(MISSING)
    values: Values = data.to_numpy()
    return values


def pieces(segment: Segment, values: int = GROUP_VALUES) -> Iterator[Segment]:
    """A segment in slices of at most so many values."""
    block = segment.block
    rows = max(values // max(len(block.columns), 1), 1)
    for first in range(0, len(block.times), rows):
        part = {name: column[first : first + rows] for name, column in block.columns.items()}
        yield segment._replace(block=SeriesBlock(block.times[first : first + rows], part))
