"""The tables of the store, the same for SQLite and PostgreSQL: first what agents send, then tables
that are derived from them, and records of the scheduler."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlalchemy.schema import SchemaItem

from jobsight.store.schema.statements import PEAK_FIGURES, SUMMED_FIGURES

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: SQLite numbers rows by itself only where the type is exactly INTEGER.
Id = BigInteger().with_variant(Integer(), "sqlite")

#: The fields of JobInfo that are columns of ``runs`` under the same name.
INFO_FIELDS = (
    Column("source", Text, nullable=False),
    Column("sluid", Text),
    Column("restart_count", BigInteger),
    Column("array_job_id", BigInteger),
    Column("array_task_id", BigInteger),
    Column("het_job_id", BigInteger),
    Column("het_offset", BigInteger),
    Column("name", Text),
    Column("user", Text),
    Column("uid", BigInteger),
    Column("account", Text),
    Column("partition", Text),
    Column("qos", Text),
    Column("command", Text),
    # A msgpack list, always read as a whole; queries by node use run_nodes.
    Column("nodes", LargeBinary),
    Column("cpus", BigInteger),
    Column("memory", BigInteger),
    Column("gpus", BigInteger),
    # A msgpack map, as nodes.
    Column("tres", LargeBinary),
    Column("time_limit", BigInteger),
    Column("submit", BigInteger),
    Column("end", BigInteger),
    Column("state", Text),
    Column("exit_code", BigInteger),
    Column("exit_signal", BigInteger),
)

#: Without a record of the scheduler, a run is running until all its nodes have reported the end.
SHOWN_STATE = (
    "coalesce(nullif(state, ''), CASE WHEN \"end\" IS NULL "
    "AND (open_nodes IS NULL OR open_nodes > 0) THEN 'RUNNING' ELSE 'UNKNOWN' END)"
)

# Figures by which lists are filtered and sorted, of runs that have ended: those of a running one
# change with each batch, which would have to update their indices. The memory in use is that of
# read/memory.py.
_ENDED = '"end" IS NOT NULL'
_USED_MEMORY = (
    "CASE WHEN upper(state) <> 'OUT_OF_MEMORY' OR state IS NULL OR memory_used_peak IS NULL"
    " OR memory_peak IS NULL OR memory_used_peak >= memory_peak"
    " THEN coalesce(memory_used_peak, memory_peak)"
    " WHEN memory IS NULL OR memory_peak <= memory THEN memory_peak"
    " WHEN memory_used_peak > memory THEN memory_used_peak ELSE memory END"
)
ENDED_FIGURES = {
    "elapsed": (BigInteger, 'CASE WHEN start >= 0 AND "end" >= start THEN "end" - start END'),
    "ended_cpu_time": (BigInteger, f"CASE WHEN {_ENDED} THEN cpu_time END"),
    "cpu_share": (
        Double,
        'CASE WHEN "end" > start AND cpus > 0 THEN CAST(cpu_time AS DOUBLE PRECISION)'
        ' / ((CAST("end" AS DOUBLE PRECISION) - start) * cpus) END',
    ),
    "ended_memory_peak": (BigInteger, f"CASE WHEN {_ENDED} THEN {_USED_MEMORY} END"),
    "memory_share": (
        Double,
        f"CASE WHEN {_ENDED} AND memory > 0"
        f" THEN CAST({_USED_MEMORY} AS DOUBLE PRECISION) / memory END",
    ),
    "gpu_share": (
        Double,
        f"CASE WHEN {_ENDED} AND gpu_measured_time > 0"
        " THEN CAST(gpu_used_time AS DOUBLE PRECISION) / gpu_measured_time END",
    ),
    # Those that the nodes have seen, or the requested ones.
    "held_gpus": (BigInteger, "nullif(coalesce(gpu_count, gpus), 0)"),
}


def _known(name: str) -> Index:
    """The index of a list that is sorted by a column, without the runs that lack it."""
    known = text(f"{name} IS NOT NULL")
    return Index(f"ix_runs_{name}", name, "start", "id", sqlite_where=known, postgresql_where=known)


runs = Table(
    "runs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("job_id", BigInteger, nullable=False),
    # Of a provisional run: the creation time of its first sighting, or the submission time.
    Column("start", BigInteger, nullable=False),
    *INFO_FIELDS,
    #: No record with a start has come from the scheduler yet.
    Column("provisional", Boolean, nullable=False),
    # Summed over the nodes, so that a list of runs reads one row each.
    Column("cpu_time", BigInteger),
    Column("memory_used_peak", BigInteger),
    Column("memory_peak", BigInteger),
    # Sightings without a final report; NULL before the first sighting.
    Column("open_nodes", BigInteger),
    # Sightings, and the nodes that they are on; NULL before the first sighting.
    Column("sightings", BigInteger),
    Column("reporting_nodes", BigInteger),
    Column("first_seen", BigInteger),
    Column("last_seen", BigInteger),
    # The GPUs of the run, NULL without any: how many, how many of them no process of the run ever
    # used, and their sums; see jobsight.store.write.gpus.
    Column("gpu_count", BigInteger),
    Column("gpu_unused_count", BigInteger),
    Column("gpu_held_time", BigInteger),
    Column("gpu_measured_time", BigInteger),
    Column("gpu_profiled_time", BigInteger),
    Column("gpu_used_time", BigInteger),
    Column("gpu_memory_peak", BigInteger),
    Column("gpu_energy", BigInteger),
    # The state that lists show, by which they are filtered; read/state.py decides the same.
    Column("shown_state", Text, Computed(SHOWN_STATE, persisted=True)),
    *(
        Column(name, kind, Computed(expression, persisted=True))
        for name, (kind, expression) in ENDED_FIGURES.items()
    ),
    Column("updated", BigInteger, nullable=False),
    # Changed since the daily rollups were updated; see jobsight.store.rollups.rollups.
    Column("stale", Boolean, nullable=False, server_default=true()),
    # Counts those changes. The rollups are computed outside the transaction that stores them, and
    # a run that changed meanwhile stays stale.
    Column("changes", BigInteger, nullable=False, server_default="0"),
    # Changed since its findings were computed; see jobsight.findings.worker.
    Column("unjudged", Boolean, nullable=False, server_default=true()),
    # The key of its batch script, if the scraper has read it; see jobsight.findings.work.
    Column("script", LargeBinary(16)),
    # The file of the archive that holds the run, relative to the archive's directory, and
    # ``updated`` and ``start`` at that time. A change resets archived_updated: if it is set, the
    # archive holds the current state of the run.
    Column("archived", Text),
    Column("archived_updated", BigInteger),
    Column("archived_start", BigInteger),
    # What retention has removed: bits of jobsight.store.maintenance.retention.
    Column("pruned", SmallInteger, nullable=False, server_default="0"),
    # The chain of dependent jobs, by the id of one of them; see job_chains.
    Column("chain_job_id", BigInteger),
    UniqueConstraint("cluster", "job_id", "start"),
    Index(None, "job_id"),
    Index(None, "start", "id"),
    # Lists are ordered by start and id. With the state, so that a list by owner and state skips
    # the others in the index.
    Index(None, "user", "start", "id", "shown_state"),
    Index(None, "account", "start", "id", "shown_state"),
    Index(None, "shown_state", "start", "id"),
    *(Index(None, name, "start", "id") for name in ("cluster", "partition", "qos", "name", "cpus")),
    *(_known(name) for name in ENDED_FIGURES),
    # With the state, so that the tasks of an array are counted by state in the index.
    Index(None, "array_job_id", "cluster", "shown_state"),
    Index(None, "het_job_id", "cluster", "shown_state"),
    # Few runs are of a chain.
    Index(
        "ix_runs_chain",
        "chain_job_id",
        "cluster",
        "shown_state",
        sqlite_where=text("chain_job_id IS NOT NULL"),
        postgresql_where=text("chain_job_id IS NOT NULL"),
    ),
    # Runs that held a GPU without using it are few, and people look for them.
    Index(
        "ix_runs_unused_gpus",
        "start",
        "id",
        sqlite_where=text("gpu_unused_count > 0"),
        postgresql_where=text("gpu_unused_count > 0"),
    ),
    # Few are stale or open at any time, so that finding them costs nothing however many runs
    # there are.
    Index(
        "ix_runs_stale",
        "cluster",
        "id",
        sqlite_where=text("stale"),
        postgresql_where=text("stale"),
    ),
    Index(
        "ix_runs_unjudged", "id", sqlite_where=text("unjudged"), postgresql_where=text("unjudged")
    ),
    Index(
        "ix_runs_open",
        # Both columns, although the first is always NULL: else SQLite takes the index of the key.
        "end",
        "cluster",
        sqlite_where=text('"end" IS NULL'),
        postgresql_where=text('"end" IS NULL'),
    ),
    # Runs to be archived. Not by ``updated``: each batch changes that, and PostgreSQL would update
    # all indices of the row.
    Index(
        "ix_runs_unarchived",
        "end",
        sqlite_where=text('archived_updated IS NULL AND "end" IS NOT NULL'),
        postgresql_where=text('archived_updated IS NULL AND "end" IS NOT NULL'),
    ),
    Index(None, "end"),
    # Finds the next run that is due without reading runs that were pruned before.
    Index(None, "pruned", "end"),
)

run_nodes = Table(
    "run_nodes",
    metadata,
    Column("id", Id, primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    # The sighting. Cluster and job id stand here too, so that a part finds its row in one step.
    Column("cluster", Text, nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("node", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("birth", BigInteger, nullable=False),
    Column("sluid", Text),
    Column("restart_count", BigInteger),
    # The agent epoch of the last batch, and when it was written.
    Column("epoch", Text, nullable=False),
    Column("written", BigInteger, nullable=False),
    # JobTotals and the coverages are msgpack documents: they are read whole, and a new figure
    # needs no migration. The figures that are summed are columns too.
    Column("totals", LargeBinary),
    Column("cpu_time", BigInteger),
    Column("memory_used_peak", BigInteger),
    Column("memory_peak", BigInteger),
    Column("coverage", LargeBinary),
    Column("first_sample", BigInteger),
    Column("last_sample", BigInteger),
    Column("final", Boolean, nullable=False, server_default=false()),
    # Chunks that wait to be joined.
    Column("open_chunks", Integer, nullable=False, server_default="0"),
    # How much was stored of the sighting over all batches: values of time series, and at most how
    # many rows of executables and steps. Both are bounded; see jobsight.store.write.bounds.
    Column("stored_values", BigInteger, nullable=False, server_default="0"),
    Column("stored_rows", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("cluster", "job_id", "node", "boot_id", "birth"),
    Index(None, "run_id", "node"),
    # Finds what a node ran, by time.
    Index(None, "cluster", "node", "birth"),
    Index(None, "node", "run_id"),
)


def _chunk_columns(owner: str, referred: str) -> tuple[SchemaItem, ...]:
    """The columns of a table of chunks, each of a row of another table."""
    return (
        # A rowid table: in one without rowid SQLite gives each BLOB over 1 kB a page of its own.
        Column("id", Id, primary_key=True),
        Column(owner, ForeignKey(f"{referred}.id"), nullable=False),
        Column("first", BigInteger, nullable=False),
        Column("last", BigInteger, nullable=False),
        Column("rows", Integer, nullable=False),
        # 0 as it arrived, 1 joined while more is expected, 2 the whole series.
        Column("level", SmallInteger, nullable=False),
        Column("data", LargeBinary, nullable=False),
        # The summaries of the metrics, from level 1 on; see jobsight.store.series.blocks.
        Column("summary", LargeBinary),
        # Nanoseconds between two rows of a downsampled series.
        Column("resolution", BigInteger),
        CheckConstraint("level BETWEEN 0 AND 2", name="level"),
        Index(None, owner, "first"),
    )


chunks = Table("chunks", metadata, *_chunk_columns("run_node_id", "run_nodes"))

# A day of a node as a whole, whatever ran on it: what a run is for the time series of jobs.
node_days = Table(
    "node_days",
    metadata,
    Column("id", Id, primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("node", Text, nullable=False),
    # Since 1970, in UTC.
    Column("day", Integer, nullable=False),
    Column("first_sample", BigInteger, nullable=False),
    Column("last_sample", BigInteger, nullable=False),
    # Chunks that wait to be joined, and the values that were stored over all batches.
    Column("open_chunks", Integer, nullable=False),
    Column("stored_values", BigInteger, nullable=False),
    # All chunks are joined to the series of the day, and no part came later.
    Column("complete", Boolean, nullable=False),
    # Retention has downsampled it.
    Column("downsampled", Boolean, nullable=False, server_default=false()),
    # Busy CPU time of a complete day in microseconds, as in the rollups, and what that many CPUs
    # could have worked.
    Column("cpu_time", BigInteger),
    Column("core_time", BigInteger),
    UniqueConstraint("cluster", "node", "day"),
    # With the sums of a cluster by day.
    Index(None, "cluster", "day", "cpu_time", "core_time"),
    # Retention finds what is due by its day.
    Index(None, "day"),
    Index(
        "ix_node_days_incomplete",
        "cluster",
        "node",
        "day",
        sqlite_where=text("NOT complete"),
        postgresql_where=text("NOT complete"),
    ),
)

node_chunks = Table("node_chunks", metadata, *_chunk_columns("node_day_id", "node_days"))

paths = Table(
    "paths",
    metadata,
    Column("id", Id, primary_key=True),
    # PostgreSQL cannot index values of 4,096 bytes, so the uniqueness lies on their digest.
    Column("digest", LargeBinary(16), nullable=False, unique=True),
    Column("path", LargeBinary, nullable=False),
    # The software name by the rules: a row of software, 0 if no rule matches, NULL before the rules
    # were applied.
    Column("software_id", BigInteger),
    Column("named", BigInteger),
    Index(None, "software_id"),
)

software = Table(
    "software",
    metadata,
    Column("id", Id, primary_key=True),
    # May hold %(user)s and %(project)s, which are filled for each run.
    Column("name", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("local_version", Text, nullable=False),
    Column("user_provided", Boolean, nullable=False),
    Column("ignored", Boolean, nullable=False),
    UniqueConstraint("name", "version", "local_version", "user_provided", "ignored"),
)

executables = Table(
    "executables",
    metadata,
    Column("run_node_id", ForeignKey("run_nodes.id"), primary_key=True),
    Column("path_id", ForeignKey("paths.id"), primary_key=True),
    Column("path_known", Boolean, primary_key=True),
    # The digest of the epoch's name: 8 bytes in each row instead of 36.
    Column("epoch", BigInteger, primary_key=True),
    # Of the batch: figures are cumulative, so an older batch that comes late must not win.
    Column("sequence", BigInteger, nullable=False),
    Column("own_namespace", Boolean, nullable=False),
    *(Column(name, BigInteger, nullable=False) for name in SUMMED_FIGURES),
    *(Column(name, BigInteger, nullable=False) for name in PEAK_FIGURES),
    Column("first_seen", BigInteger, nullable=False),
    Column("last_seen", BigInteger, nullable=False),
    Index(None, "path_id"),
    sqlite_with_rowid=False,
)

steps = Table(
    "steps",
    metadata,
    Column("run_node_id", ForeignKey("run_nodes.id"), primary_key=True),
    # As the scheduler names it: "batch", "extern", "0", "1" ...
    Column("step", Text, primary_key=True),
    Column("tasks", BigInteger, nullable=False),
    Column("cpu_time", BigInteger),
    Column("cpu_overhead", BigInteger),
    Column("memory_peak", BigInteger),
    Column("oom_kills", BigInteger),
    Column("first_seen", BigInteger, nullable=False),
    Column("last_seen", BigInteger, nullable=False),
    Column("ended", Boolean, nullable=False),
    # Over all agent epochs; the last of them, and its part of it.
    Column("gpu_time", BigInteger),
    Column("gpu_memory_peak", BigInteger),
    Column("gpu_epoch", BigInteger),
    Column("gpu_epoch_time", BigInteger),
    sqlite_with_rowid=False,
)

# One GPU, or one MIG instance, as a run held it, by agent epoch: the fields of GpuUse.
gpus = Table(
    "gpus",
    metadata,
    Column("run_node_id", ForeignKey("run_nodes.id"), primary_key=True),
    Column("key", Text, primary_key=True),
    # As that of executables; figures are cumulative within it, and so is the sequence.
    Column("epoch", BigInteger, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("uuid", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("parent", Text),
    Column("first_seen", BigInteger, nullable=False),
    Column("last_seen", BigInteger, nullable=False),
    Column("held_time", BigInteger, nullable=False),
    Column("used", Boolean),
    Column("shared", Boolean, nullable=False),
    Column("active_time", BigInteger),
    Column("multiprocessor_time", BigInteger),
    Column("occupancy_time", BigInteger),
    Column("tensor_time", BigInteger),
    Column("fp64_time", BigInteger),
    Column("fp32_time", BigInteger),
    Column("fp16_time", BigInteger),
    Column("bandwidth_time", BigInteger),
    Column("memory_total", BigInteger),
    Column("memory_peak", BigInteger),
    Column("memory_time", BigInteger),
    Column("energy", BigInteger),
    Column("pcie_received_bytes", BigInteger),
    Column("pcie_sent_bytes", BigInteger),
    Column("nvlink_received_bytes", BigInteger),
    Column("nvlink_sent_bytes", BigInteger),
    # These three are msgpack documents.
    Column("throttled_time", LargeBinary),
    Column("faults", LargeBinary),
    Column("coverage", LargeBinary),
    # The held time for which the use is known, and the use: that of the multiprocessors, or the
    # active time where that is not known.
    Column("measured_time", BigInteger, nullable=False),
    Column("used_time", BigInteger),
    sqlite_with_rowid=False,
)

agents = Table(
    "agents",
    metadata,
    Column("id", Id, primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("version", Text, nullable=False),
    # The agent's clock and ours, of the batch received last.
    Column("written", BigInteger, nullable=False),
    Column("received", BigInteger, nullable=False),
    # How far the agent's clock is ahead, and when that was found.
    Column("clock_skew", BigInteger, nullable=False),
    Column("skew_measured", BigInteger, nullable=False),
    UniqueConstraint("cluster", "node"),
)

spools = Table(
    "spools",
    metadata,
    Column("id", Id, primary_key=True),
    Column("agent_id", ForeignKey("agents.id"), nullable=False),
    Column("name", Text, nullable=False),
    UniqueConstraint("agent_id", "name"),
)

# One row per interval of sequence numbers, not per batch: the table grows with the gaps
# (what a full spool had to drop), which are few.
batches = Table(
    "batches",
    metadata,
    Column("spool_id", ForeignKey("spools.id"), primary_key=True),
    Column("first", BigInteger, primary_key=True),
    Column("last", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Id, primary_key=True),
    # Agents that show it may write for this cluster only.
    Column("cluster", Text, nullable=False),
    # SHA-256 of a token that is random itself: nothing a stronger hash would add.
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("label", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("revoked", BigInteger),
    Column("used", BigInteger),
)

# The accounts of people on this server. An account of the scheduler is another thing.
user_accounts = Table(
    "user_accounts",
    metadata,
    # The name of the user on the clusters.
    Column("name", Text, primary_key=True),
    Column("role", Text, nullable=False),
    # A msgpack list: the accounts of the scheduler that a mentor or coordinator was given.
    Column("accounts", LargeBinary, nullable=False),
    # argon2id with its parameters; NULL if this server checks no password of the user.
    Column("password_hash", Text),
    # How the user signs in: "local", "oidc", "ldap" or "proxy".
    Column("origin", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("disabled", BigInteger),
    Column("last_sign_in", BigInteger),
)

# Browsers that are signed in.
sessions = Table(
    "sessions",
    metadata,
    # SHA-256 of the random value of the cookie.
    Column("digest", LargeBinary(32), primary_key=True),
    # NULL of a session of the server's token: then the digest of that token is set.
    Column("user", ForeignKey("user_accounts.name")),
    Column("server_token", LargeBinary(32)),
    Column("created", BigInteger, nullable=False),
    Column("last_seen", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    # The user on this machine whose process signed in, if it connected by loopback.
    Column("peer_uid", BigInteger),
    Column("address", Text, nullable=False),
    Column("user_agent", Text, nullable=False),
    Index(None, "user"),
    Index(None, "expires"),
    sqlite_with_rowid=False,
)

# Tokens of users for programs.
user_tokens = Table(
    "user_tokens",
    metadata,
    Column("id", Id, primary_key=True),
    Column("user", ForeignKey("user_accounts.name"), nullable=False),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("label", Text, nullable=False),
    # "read" or "write".
    Column("scope", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("revoked", BigInteger),
    Column("used", BigInteger),
    Index(None, "user"),
)

# What a user chose for the pages.
preferences = Table(
    "preferences",
    metadata,
    Column("user", ForeignKey("user_accounts.name"), primary_key=True),
    # A msgpack document; see jobsight.store.accounts.preferences.
    Column("data", LargeBinary, nullable=False),
)

# Who viewed the pages and runs of whom. Repeated views on one day are one row with a count.
# Failed sign-ins in a window of time, which all servers of the store count together. A key is the
# digest, with a secret key, of an account, an address or both.
sign_in_failures = Table(
    "sign_in_failures",
    metadata,
    Column("key", LargeBinary, primary_key=True),
    # The end of the window, after which the row is removed.
    Column("ends", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False),
    Index(None, "ends"),
    sqlite_with_rowid=False,
)

audit_log = Table(
    "audit_log",
    metadata,
    # Whose page or run it was.
    Column("user", Text, primary_key=True),
    # The day since 1970 in UTC.
    Column("day", Integer, primary_key=True, autoincrement=False),
    # The name of the account that viewed; empty for the server's token.
    Column("viewer", Text, primary_key=True),
    # "alpha:12:20260101T000000Z" for a run, otherwise the path of the page.
    Column("subject", Text, primary_key=True),
    Column("first", BigInteger, nullable=False),
    Column("last", BigInteger, nullable=False),
    Column("count", BigInteger, nullable=False),
    Index(None, "day"),
    Index(None, "last"),
    sqlite_with_rowid=False,
)

# Who coordinated an account of the scheduler, from one scrape to another.
coordinators = Table(
    "coordinators",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("account", Text, primary_key=True),
    Column("user", Text, primary_key=True),
    Column("since", BigInteger, primary_key=True, autoincrement=False),
    # NULL while the last scrape has it.
    Column("until", BigInteger),
    Index(None, "user"),
    sqlite_with_rowid=False,
)


# The share of each run in the daily rollups, stored so that a changed run (a late record, a changed
# rule) is subtracted exactly as it was added.
contributions = Table(
    "contributions",
    metadata,
    # No foreign key: a run that was merged into another must still be subtracted.
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    # Grows with each change; an export resumes from the last revision it has seen.
    Column("revision", BigInteger, nullable=False),
    # The run is deleted, its share is still in the rollups.
    Column("dropped", Boolean, nullable=False, server_default=false()),
    Column("data", LargeBinary, nullable=False),
    Index(None, "revision"),
    Index(
        "ix_contributions_dropped",
        "run_id",
        sqlite_where=text("dropped"),
        postgresql_where=text("dropped"),
    ),
)

#: Who used it. Unknown names are empty texts.
_OWNER = ("cluster", "user", "account", "partition")


def _key(period: str, *names: str) -> list[Column[object]]:
    """The primary key of a table of rollups, in this order."""
    types: dict[str, type[Integer | BigInteger | Text]] = {
        period: Integer,
        "software_id": BigInteger,
    }
    return [
        Column(name, types.get(name, Text), primary_key=True, autoincrement=False)
        for name in (period, *names)
    ]


def _figures(*names: str) -> list[Column[object]]:
    return [Column(name, BigInteger, nullable=False) for name in names]


def _within_63_bits(*names: str) -> CheckConstraint:
    """Refuse a sum that overflows: SQLite would store it as a rounded floating-point number."""
    return CheckConstraint(
        " AND ".join(f"{name} <= {2**63 - 1}" for name in names), name="within_63_bits"
    )


# Times of cores and GPUs are microseconds and memory is MiB seconds here: in nanoseconds and bytes
# one user of a large machine would run over 63 bits within a day. Runs are counted on the day of
# their start.
_USAGE = (
    *("runs", "executions", "cpu_time", "core_time"),
    # GPU time held, the part of it that was measured, the part of that whose use is known of the
    # multiprocessors, and used; energy in millijoules.
    *("gpu_time", "gpu_measured_time", "gpu_profiled_time", "gpu_used_time", "gpu_energy"),
    "memory_time",
)
# Shares of what was allocated, by CPU time; of GPUs by GPU time if that is known. A run with
# several rows of one name counts on one of them; so for versions of a name, too.
_SOFTWARE = (*_USAGE[:-1], "name_runs", "version_runs", "local_version_runs")

# Days are numbers since 1970 in UTC. A row of software_id is one of software; 0 is undetermined, -1
# is CPU time that no executable accounts for.
usage_by_day = Table(
    "usage_by_day",
    metadata,
    *_key("day", *_OWNER),
    *_figures(*_USAGE),
    _within_63_bits(*_USAGE[1:]),
    sqlite_with_rowid=False,
)

software_by_day = Table(
    "software_by_day",
    metadata,
    *_key("day", *_OWNER, "software_id"),
    *_figures(*_SOFTWARE),
    _within_63_bits(*_USAGE[1:-1]),
    Index(None, "software_id", "day"),
    sqlite_with_rowid=False,
)

# The sums of the days of a month, so that a year is read from twelve rows and not from 365. Months
# are numbers since January 1970. Bit 0 of ``days`` is set if the first day has a row, and so on.
# The keys are in the order in which reports group.
usage_by_month = Table(
    "usage_by_month",
    metadata,
    *_key("month", "user", "account", "cluster", "partition"),
    *_figures(*_USAGE),
    Column("days", BigInteger, nullable=False),
    _within_63_bits(*_USAGE[1:]),
    sqlite_with_rowid=False,
)

software_by_month = Table(
    "software_by_month",
    metadata,
    *_key("month", "software_id", "user", "account", "cluster", "partition"),
    *_figures(*_SOFTWARE),
    Column("days", BigInteger, nullable=False),
    _within_63_bits(*_USAGE[1:-1]),
    sqlite_with_rowid=False,
)

# What the scheduler reports of a run beyond the columns of runs: compressed msgpack.
run_details = Table(
    "run_details",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True, autoincrement=False),
    # When the document last changed; sinks resume from there.
    Column("changed", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Index(None, "changed"),
)

# The cluster as the scheduler sees it: "node", "partition", "reservation", "qos", "association".
cluster_records = Table(
    "cluster_records",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("data", LargeBinary, nullable=False),
    Column("changed", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Where background work resumes: "export", "rules" ...
checkpoints = Table(
    "checkpoints",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
    Column("text", Text),
)

# Work that failed and is not tried again by itself, so that it stops nothing else; see
# jobsight.store.dead_letters.
dead_letters = Table(
    "dead_letters",
    metadata,
    # The kind of work, and what it was to be done for: "rollup" and the id of a run.
    Column("kind", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("reason", Text, nullable=False),
    # The first and the last failure.
    Column("first", BigInteger, nullable=False),
    Column("last", BigInteger, nullable=False),
    Column("tries", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# What recipients of mails do not get: a kind of mails, or findings of a kind. An empty recipient is
# everybody.
mail_pauses = Table(
    "mail_pauses",
    metadata,
    Column("recipient", Text, primary_key=True),
    Column("cause", Text, primary_key=True),
    # NULL is for good.
    Column("until", BigInteger),
    Column("reason", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# What became of mails by day, kind and recipient; mails about jobs are counted without a recipient.
mail_log = Table(
    "mail_log",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, primary_key=True),
    Column("recipient", Text, primary_key=True),
    Column("outcome", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("mails", BigInteger, nullable=False),
    Column("last", BigInteger, nullable=False),
    Index(None, "recipient", "kind"),
    sqlite_with_rowid=False,
)

# The last exported state of a run, so that only changes are exported again.
exported = Table(
    "exported",
    metadata,
    Column("name", Text, primary_key=True),
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    # NULL for a run that waits for its end or is to be exported again.
    Column("digest", LargeBinary(16)),
    Index(
        "ix_exported_waiting",
        "name",
        sqlite_where=text("digest IS NULL"),
        postgresql_where=text("digest IS NULL"),
    ),
    sqlite_with_rowid=False,
)

# The same work: runs of one user with the same script, job name or set of programs.
works = Table(
    "works",
    metadata,
    Column("id", Id, primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("account", Text, nullable=False),
    # "script", "name" or "signature": what the key is a digest of.
    Column("kind", Text, nullable=False),
    Column("key", LargeBinary, nullable=False),
    # For people: the name of the job, or its largest program.
    Column("name", Text, nullable=False),
    UniqueConstraint("cluster", "user", "account", "kind", "key"),
    # Finds the works of a script.
    Index(None, "key"),
    # Finds the works of a job's name.
    Index(None, "user", "name"),
)

# The text of batch scripts, where the site has them stored, by the key of their work.
scripts = Table(
    "scripts",
    metadata,
    Column("key", LargeBinary, primary_key=True),
    Column("text", Text, nullable=False),
)

# The figures that rules see, so that changed rules are applied to earlier runs without reading
# their time series again.
run_figures = Table(
    "run_figures",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True, autoincrement=False),
    Column("work_id", ForeignKey("works.id")),
    # runs.changes when they were computed.
    Column("revision", BigInteger, nullable=False),
    # Compressed msgpack.
    Column("data", LargeBinary, nullable=False),
    Index(None, "work_id", "run_id"),
)

#: What a finding has cost, in the units of the rollups: microseconds of cores and GPUs, MiB seconds
#: and millijoules. Integers, so that sums are exact whatever the order of their changes is.
FINDING_COSTS = ("core_time", "gpu_time", "memory_time", "energy")

findings = Table(
    "findings",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True, autoincrement=False),
    # The name of the rule.
    Column("kind", Text, primary_key=True),
    # 0 info, 1 warning, 2 critical.
    Column("severity", SmallInteger, nullable=False),
    Column("audience", Text, nullable=False),
    # "open", "gone", "withheld", "acknowledged" or "not helpful".
    Column("state", Text, nullable=False),
    # When the rule first held, and when it was last found to hold with a change.
    Column("first", BigInteger, nullable=False),
    Column("last", BigInteger, nullable=False),
    *(Column(name, BigInteger) for name in FINDING_COSTS),
    # One number for all costs, by which lists are ordered.
    Column("weight", BigInteger, nullable=False),
    # Of the run; unknown names are empty texts.
    *(Column(name, Text, nullable=False) for name in _OWNER),
    # The day of its start, since 1970.
    Column("day", Integer, nullable=False),
    Column("work_id", ForeignKey("works.id")),
    # The whole finding: msgpack.
    Column("data", LargeBinary, nullable=False),
    # Who has acknowledged it or found it not helpful, and when.
    Column("reply_user", Text),
    Column("reply_time", BigInteger),
    CheckConstraint("severity BETWEEN 0 AND 2", name="severity"),
    # Lists are of some days, the worst first.
    Index(None, "day", "kind"),
    Index(None, "user", "day"),
    Index(None, "account", "day"),
    Index(None, "kind", "day"),
    Index(None, "work_id", "kind"),
    sqlite_with_rowid=False,
)

#: Findings that hold, and what was replied to them.
_FINDINGS = ("runs", "acknowledged", "not_helpful", *FINDING_COSTS)

# Sums of the findings that hold, kept by additions and subtractions in the transaction that changes
# a finding. They outlive their runs.
findings_by_day = Table(
    "findings_by_day",
    metadata,
    *_key("day", *_OWNER, "kind"),
    *_figures(*_FINDINGS),
    _within_63_bits(*FINDING_COSTS),
    Index(None, "kind", "day"),
    sqlite_with_rowid=False,
)

# What was shown, to whom and where: "report", "page", "api", "mail".
findings_shown = Table(
    "findings_shown",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True, autoincrement=False),
    Column("kind", Text, primary_key=True),
    Column("viewer", Text, primary_key=True),
    Column("place", Text, primary_key=True),
    Column("first", BigInteger, nullable=False),
    Column("last", BigInteger, nullable=False),
    Column("count", BigInteger, nullable=False),
    Index(None, "kind", "first"),
    sqlite_with_rowid=False,
)

# Which jobs depend on each other, also before they run. Only jobs of one user make a chain.
job_chains = Table(
    "job_chains",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("user", Text, primary_key=True),
    Column("chain_job_id", BigInteger, nullable=False),
    Column("seen", BigInteger, nullable=False),
    Index(None, "chain_job_id", "cluster", "user"),
    Index(None, "seen"),
    sqlite_with_rowid=False,
)

# What users add to their own jobs, by name. Of a job and its user, not of a run: a requeued job
# keeps them, and a job of another user to which Slurm gives the same id has none.
job_properties = Table(
    "job_properties",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("user", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    # JSON.
    Column("value", Text, nullable=False),
    # Bytes of name and value; their sum is limited.
    Column("size", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
    # Finds those of a user, and jobs by a property.
    Index(None, "user"),
    Index(None, "name"),
)
