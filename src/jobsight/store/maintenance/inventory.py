"""The content of a store: rows and bytes of each class, the range of runs, and the agents."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from sqlalchemy import Connection, Table, func, select, text
from sqlalchemy.exc import OperationalError

from jobsight.store.database import Database
from jobsight.store.read.queries import StoreInfo
from jobsight.store.schema import tables, versions
from jobsight.store.schema.tables import (
    agents,
    batches,
    chunks,
    executables,
    gpus,
    paths,
    run_nodes,
    runs,
    software,
    spools,
    steps,
    tokens,
)
from jobsight.store.series import codec

#: The tables of each class.
CLASSES: dict[str, tuple[Table, ...]] = {
    "series": (chunks,),
    "nodes": (tables.node_days, tables.node_chunks),
    "executables": (executables, steps, paths, software),
    "runs": (runs, run_nodes, gpus, tables.run_details, tables.job_properties, tables.job_chains),
    "rollups": (
        tables.contributions,
        tables.usage_by_day,
        tables.software_by_day,
        tables.usage_by_month,
        tables.software_by_month,
    ),
    "findings": (
        tables.findings,
        tables.findings_by_day,
        tables.findings_shown,
        tables.run_figures,
        tables.works,
        tables.scripts,
    ),
    "scheduler": (tables.cluster_records, tables.checkpoints),
    "agents": (agents, spools, batches, tokens),
    "accounts": (
        tables.user_accounts,
        tables.sessions,
        tables.user_tokens,
        tables.preferences,
        tables.audit_log,
        tables.sign_in_failures,
        tables.coordinators,
    ),
    "exports": (tables.exported,),
    "dead letters": (tables.dead_letters,),
    "mail": (tables.mail_pauses, tables.mail_log),
}
#: Chunks that are decoded to estimate the bytes of a value.
SAMPLED_CHUNKS = 100


class Holding(msgspec.Struct):
    """One class of data."""

    rows: int
    #: On disk with indices; None if the engine does not report it.
    bytes: int | None


class LastHeard(msgspec.Struct):
    """An agent and the time of its last batch."""

    cluster: str
    node: str
    version: str
    received: int
    clock_skew: int


class Inventory(msgspec.Struct, kw_only=True):
    """The content of a store."""

    location: str
    engine: str
    version: str
    #: Bytes of the database, and how many of them are free for new rows.
    size: int
    reusable: int | None
    #: Bytes free on the disk; None for PostgreSQL.
    disk_free: int | None
    classes: dict[str, Holding]
    runs: int
    open_runs: int
    nodes: int
    chunks: int
    downsampled_chunks: int
    #: The first and the last start of a run.
    oldest: int | None
    newest: int | None
    #: Compressed bytes of a value, estimated from some chunks; None without chunks.
    bytes_a_value: float | None
    agents: list[LastHeard]


def take_inventory(database: Database) -> Inventory:
    """Count rows; sizes are those that the engine reports."""
    with database.read() as connection:
        oldest, newest = connection.execute(
            select(func.min(runs.c.start), func.max(runs.c.start))
        ).one()
        downsampled = select(func.count()).where(chunks.c.resolution.is_not(None))
        open_runs = select(func.count()).where(runs.c.end.is_(None))
        counts = _counts(connection)
        return Inventory(
            location=database.where,
            engine=database.engine.dialect.name,
            version=versions.stored_version(connection) or "",
            size=size_of(connection),
            reusable=None if database.postgresql else _pages_size(connection, "freelist_count"),
            disk_free=None if database.postgresql else disk_free(database),
            classes=_classes(connection, counts),
            runs=counts[runs.name],
            open_runs=connection.scalar(open_runs) or 0,
            nodes=counts[run_nodes.name],
            chunks=counts[chunks.name],
            downsampled_chunks=connection.scalar(downsampled) or 0,
            oldest=oldest,
            newest=newest,
            bytes_a_value=_bytes_a_value(connection),
            agents=_agents(connection),
        )


def summarize_store(database: Database) -> StoreInfo:
    """Count the rows of the main tables."""
    with database.read() as connection:

        def count(table: Table) -> int:
            return connection.scalar(select(func.count()).select_from(table)) or 0

        rows, series_size = connection.execute(
            select(func.sum(chunks.c.rows), func.sum(func.length(chunks.c.data)))
        ).one()
        oldest, newest = connection.execute(
            select(func.min(runs.c.start), func.max(runs.c.start))
        ).one()
        return StoreInfo(
            location=database.where,
            engine=database.engine.dialect.name,
            version=versions.stored_version(connection) or "",
            runs=count(runs),
            nodes=count(run_nodes),
            chunks=count(chunks),
            rows=int(rows or 0),
            executables=count(executables),
            steps=count(steps),
            gpus=count(gpus),
            paths=count(paths),
            agents=count(agents),
            series_size=int(series_size or 0),
            size=size_of(connection),
            oldest=oldest,
            newest=newest,
        )


def size_of(connection: Connection) -> int:
    """The size of the database in bytes."""
    if connection.dialect.name == "postgresql":
        return connection.scalar(text("SELECT pg_database_size(current_database())")) or 0
    return _pages_size(connection, "page_count")


def _pages_size(connection: Connection, pragma: str) -> int:
    query = f"SELECT {pragma} * page_size FROM pragma_{pragma}(), pragma_page_size()"
    return connection.scalar(text(query)) or 0


def list_agents(database: Database) -> list[LastHeard]:
    """Every agent that ever sent a batch, and when it last did."""
    with database.read() as connection:
        return _agents(connection)


def list_users(database: Database, limit: int) -> list[str]:
    """The names of users of all runs."""
    query = select(runs.c.user).where(runs.c.user.is_not(None)).distinct().limit(limit)
    with database.read() as connection:
        return list(connection.scalars(query))


def disk_free(database: Database) -> int:
    """The bytes free on the disk of an SQLite file."""
    file_system = os.statvfs(Path(database.where).absolute().parent)
    return file_system.f_bavail * file_system.f_frsize


def _counts(connection: Connection) -> dict[str, int]:
    return {
        table.name: connection.scalar(select(func.count()).select_from(table)) or 0
        for tables in CLASSES.values()
        for table in tables
    }


def _classes(connection: Connection, counts: dict[str, int]) -> dict[str, Holding]:
    sizes = _sizes(connection)
    result = {}
    for name, members in CLASSES.items():
        known = [sizes[table.name] for table in members if table.name in sizes]
        rows = sum(counts[table.name] for table in members)
        result[name] = Holding(rows, sum(known) if known else None)
    return result


def _sizes(connection: Connection) -> dict[str, int]:
    """The bytes of each table with its indices."""
    if connection.dialect.name == "postgresql":
        query = "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r'"
    else:
        query = """
            SELECT known.tbl_name, sum(dbstat.pgsize) FROM dbstat
            JOIN sqlite_master AS known ON known.name = dbstat.name
            WHERE dbstat.aggregate = 1 GROUP BY 1
        """
    try:
        return {name: int(size) for name, size in connection.execute(text(query))}
    except OperationalError:
        # Some builds of SQLite lack dbstat.
        return {}


def _bytes_a_value(connection: Connection) -> float | None:
    lowest, highest = connection.execute(select(func.min(chunks.c.id), func.max(chunks.c.id))).one()
    if lowest is None:
        return None
    step = max((highest - lowest) // SAMPLED_CHUNKS, 1)
    sampled: dict[int, bytes] = {}
    for first in range(lowest, highest + 1, step):
        query = select(chunks.c.id, chunks.c.data).where(chunks.c.id >= first)
        row = connection.execute(query.order_by(chunks.c.id).limit(1)).one()
        sampled[row.id] = row.data
    values = 0
    for data in sampled.values():
        times, columns = codec.decode(data)
        values += len(times) * len(columns)
    return sum(map(len, sampled.values())) / values if values else None


def _agents(connection: Connection) -> list[LastHeard]:
    columns = [agents.c[name] for name in LastHeard.__struct_fields__]
    query = select(*columns).order_by(agents.c.received.desc(), agents.c.node)
    return [LastHeard(*row) for row in connection.execute(query)]
