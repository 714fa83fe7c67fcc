"""Tables that are worked out from the others, or hold what the scheduler alone knows."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    false,
    text,
)

from jobsight.store.tables import metadata

# What each run adds to the sums by day. Kept, so that a run that changes (a late record, a rule
# that names its programs otherwise) is taken out of the sums exactly as it went in.
contributions = Table(
    "contributions",
    metadata,
    # No foreign key: a run that another one absorbed must still be taken out.
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    # Grows with each contribution that changes; an export remembers how far it came.
    Column("revision", BigInteger, nullable=False),
    # The run is gone, its share is still in the sums.
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

#: Days since 1970 in UTC, and who used it. Unknown names are empty texts.
_DAY_KEY = ("day", "cluster", "user", "account", "partition")


def _key() -> list[Column[object]]:
    return [
        Column(name, Integer if name == "day" else Text, primary_key=True, autoincrement=False)
        for name in _DAY_KEY
    ]


# Times of cores and GPUs are microseconds and memory is MiB seconds here: in nanoseconds and bytes
# one user of a large machine would run over 63 bits within a day.
usage_by_day = Table(
    "usage_by_day",
    metadata,
    *_key(),
    # Counted on the day of their start.
    Column("runs", BigInteger, nullable=False),
    Column("executions", BigInteger, nullable=False),
    Column("cpu_time", BigInteger, nullable=False),
    Column("core_time", BigInteger, nullable=False),
    Column("gpu_time", BigInteger, nullable=False),
    Column("memory_time", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

software_by_day = Table(
    "software_by_day",
    metadata,
    *_key(),
    # A row of software; 0 is undetermined, -1 is CPU time that no executable accounts for.
    Column("software_id", BigInteger, primary_key=True, autoincrement=False),
    Column("runs", BigInteger, nullable=False),
    Column("executions", BigInteger, nullable=False),
    Column("cpu_time", BigInteger, nullable=False),
    # Shares of what was allocated, by CPU time.
    Column("core_time", BigInteger, nullable=False),
    Column("gpu_time", BigInteger, nullable=False),
    # A run with several rows of one name counts on one of them; so for versions of a name, too.
    Column("name_runs", BigInteger, nullable=False),
    Column("version_runs", BigInteger, nullable=False),
    Column("local_version_runs", BigInteger, nullable=False),
    Index(None, "software_id", "day"),
    sqlite_with_rowid=False,
)

# All that the scheduler says of a run beyond the columns of runs: a msgpack document, compressed.
run_details = Table(
    "run_details",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True, autoincrement=False),
    # When the scheduler last said something new of it; sinks go on from there.
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

# How far a piece of work that goes on for ever has come: "export", "rules" ...
marks = Table(
    "marks",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
    Column("text", Text),
)

# What an export last said of a run, so that only what has changed is said again.
exported = Table(
    "exported",
    metadata,
    Column("name", Text, primary_key=True),
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    # NULL of a run that waits: for its end, or because it is to be said again.
    Column("digest", LargeBinary(16)),
    Index(
        "ix_exported_waiting",
        "name",
        sqlite_where=text("digest IS NULL"),
        postgresql_where=text("digest IS NULL"),
    ),
    sqlite_with_rowid=False,
)
