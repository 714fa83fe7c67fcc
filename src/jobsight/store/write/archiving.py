"""What the archive writes to the store: parts in progress, the archived runs, and restored runs.

A part is recorded before its files are written, and the record is removed in the transaction that
checkpoints its runs as archived. A record that is found later names the files of a killed process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import select, text

from jobsight.model import JobTotals
from jobsight.store.database import Database, Transaction
from jobsight.store.findings.rows import HOURS, SEVERITIES, UPSERT, owner_of
from jobsight.store.read.external import ArchivedRun
from jobsight.store.schema import statements
from jobsight.store.schema.statements import (
    GPU_NAMES,
    INFO_NAMES,
    PEAK_FIGURES,
    SUMMED_FIGURES,
    quoted,
)
from jobsight.store.schema.tables import checkpoints
from jobsight.store.series import codec
from jobsight.store.series.blocks import ARRIVED, SeriesBlock, join_chunks
from jobsight.store.write.gpus import GpuSums, columns_of_gpu, gpu_from_columns
from jobsight.util.locks import AlreadyRunning, LockFile

#: The name of the record of a part in progress.
_PART: Final = "archive"
#: Of the advisory lock; the other families are in jobsight.store.transaction.
_LOCK_FAMILY: Final = 28530

_INSERT_PART: Final = "INSERT INTO checkpoints (name, value, text) VALUES (:name, 0, :text)"
_DELETE_PART: Final = "DELETE FROM checkpoints WHERE name = :name"
#: A run that has changed since it was read stays pending.
_SET_ARCHIVED: Final = """
    UPDATE runs SET archived = :file, archived_start = :start,
        archived_updated = CASE WHEN updated = :updated THEN updated END
    WHERE id = :id
"""

_encode = msgspec.msgpack.Encoder().encode
_TOTALS: Final = tuple(name for name in JobTotals.__struct_fields__ if name != "time")
_SEEN: Final = ("first_seen", "last_seen")
_FIGURES: Final = (
    *("path_known", "own_namespace", "epoch", "sequence"),
    *(*SUMMED_FIGURES, *PEAK_FIGURES, *_SEEN),
)
#: Figures that an archive of an older release does not have.
_ADDED: Final = frozenset(("gpu_time", "gpu_memory_peak"))
_SUMS: Final = (
    *("provisional", "cpu_time", "memory_used_peak", "memory_peak", *_SEEN, "updated"),
    *GpuSums._fields,
)
_RUN: Final = (*INFO_NAMES, *_SUMS)
_NODE: Final = ("node", "boot_id", "birth", "sluid", "restart_count", "epoch", "written", "final")
_NODE_SUMS: Final = ("cpu_time", "memory_used_peak", "memory_peak", "first_sample", "last_sample")
_CHUNK: Final = ("first", "last", "rows", "data")

_FIND_RUN: Final = (
    "SELECT id FROM runs WHERE cluster = :cluster AND job_id = :job_id AND start = :start"
)
_FIND_NODE: Final = """
    SELECT id FROM run_nodes WHERE cluster = :cluster AND job_id = :job_id AND node = :node
        AND boot_id = :boot_id AND birth = :birth
"""
#: Downsampled chunks are left out: the archive has their samples at full resolution.
_NEWER_CHUNKS: Final = """
    SELECT first, last, rows, data FROM chunks
    WHERE run_node_id = :owner AND resolution IS NULL ORDER BY id
"""
_DELETE_CHUNKS: Final = "DELETE FROM chunks WHERE run_node_id = :owner"
_INSERT_DETAILS: Final = "INSERT INTO run_details (run_id, data) VALUES (:id, :data)"
_KINDS: Final = "SELECT kind FROM findings WHERE run_id = :id"
_OWNER: Final = 'SELECT cluster, "user", account, "partition", start FROM runs WHERE id = :id'
_CLEAR_PRUNED: Final = "UPDATE runs SET pruned = 0 WHERE id = :id"


def _insert(table: str, names: tuple[str, ...]) -> str:
    columns = ", ".join(map(quoted, names))
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join(f':{name}' for name in names)})"


_INSERT_RUN: Final = _insert(
    "runs",
    # Neither stale nor to be judged: the daily rollups contain the run and its findings already.
    (
        *("cluster", "job_id", "start", *_RUN),
        *("archived", "archived_updated", "archived_start", "stale", "unjudged"),
    ),
)
_INSERT_NODE: Final = _insert(
    "run_nodes", ("run_id", "cluster", "job_id", *_NODE, "totals", "coverage", *_NODE_SUMS)
)


class PartInProgress(msgspec.Struct):
    """A part whose files are being written."""

    location: str
    folder: str
    part: str


class ArchivedVersion(NamedTuple):
    """A run as it was archived."""

    id: int
    updated: int
    start: int


class RestoredNode(NamedTuple):
    """A row of the archive's ``nodes`` with its time series."""

    row: Mapping[str, Any]
    series: SeriesBlock


@contextmanager
def archive_lock(database: Database) -> Iterator[None]:
    """Lock the store for one archiver; :class:`AlreadyRunning` if there is another."""
    owner = f"an archiver of {database.where}"
    if not database.postgresql:
        lock = LockFile(Path(f"{database.where}.archiving"), owner)
        try:
            yield
        finally:
            lock.close()
        return
    # A lock of the session: PostgreSQL releases it when the process ends.
    with database.engine.connect() as connection:
        if not connection.scalar(text(f"SELECT pg_try_advisory_lock({_LOCK_FAMILY}, 0)")):
            raise AlreadyRunning(f"{owner} is already running")
        connection.commit()
        try:
            yield
        finally:
            connection.execute(text(f"SELECT pg_advisory_unlock({_LOCK_FAMILY}, 0)"))
            connection.commit()


def begin_part(database: Database, part: PartInProgress) -> None:
    """Record a part before its first file is written."""
    values = {"name": _PART, "text": msgspec.json.encode(part).decode()}
    with database.write() as transaction:
        transaction.execute(_INSERT_PART, values)


def end_part(database: Database, file: str = "", versions: Iterable[ArchivedVersion] = ()) -> None:
    """Mark runs as archived in a file, and remove the record of the part."""
    with database.write() as transaction:
        transaction.execute_many(
            _SET_ARCHIVED, [version._asdict() | {"file": file} for version in versions]
        )
        transaction.execute(_DELETE_PART, {"name": _PART})


def parts_in_progress(database: Database) -> list[PartInProgress]:
    """Parts that are being written, or were when their writer was killed."""
    with database.read() as connection:
        texts = connection.scalars(select(checkpoints.c.text).where(checkpoints.c.name == _PART))
        return [msgspec.json.decode(row, type=PartInProgress) for row in texts if row is not None]


def restore_run(  # noqa: PLR0913 -- one for each table of a run
    database: Database,
    archived: ArchivedRun,
    row: Mapping[str, Any],
    nodes: Sequence[RestoredNode],
    executables: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    gpus: Sequence[Mapping[str, Any]],
    findings: Sequence[Mapping[str, Any]],
    into: int | None = None,
) -> None:
    """Store a run of the archive, in addition to what the store has of it; rows as the archive has
    them. ``into`` is the id of a run whose start has changed since it was archived."""
    with database.write() as transaction:
        # Locks are always taken in this order: jobs, paths.
        transaction.lock("job", [f"{archived.cluster} {archived.job_id}"])
        run_id = into or _run_id(transaction, archived, row)
        node_ids = {
            node.row["sighting"]: _node_id(transaction, archived.cluster, run_id, node.row)
            for node in nodes
        }
        path_ids = _path_ids(transaction, {use["path"] for use in executables})
        transaction.execute_many(
            statements.UPSERT_EXECUTABLE,
            [
                {name: (use[name] or 0) if name in _ADDED else use[name] for name in _FIGURES}
                | {"run_node_id": node_ids[use["sighting"]], "path_id": path_ids[use["path"]]}
                for use in executables
            ],
        )
        transaction.execute_many(
            statements.UPSERT_STEP,
            [
                {
                    **step,
                    "run_node_id": node_ids[step["sighting"]],
                    "gpu_epoch": None,
                    "gpu_epoch_time": None,
                }
                for step in steps
            ],
        )
        transaction.execute_rows(
            statements.UPSERT_GPU,
            [
                (node_ids[gpu["sighting"]], gpu["epoch"], gpu["sequence"], *_gpu_columns(gpu))
                for gpu in gpus
            ],
        )
        _restore_findings(transaction, run_id, findings)
        for node in nodes:
            _restore_series(transaction, node_ids[node.row["sighting"]], node.series)
        transaction.execute(statements.COUNT_SIGHTINGS, {"id": run_id})
        transaction.execute(_CLEAR_PRUNED, {"id": run_id})


def _run_id(transaction: Transaction, archived: ArchivedRun, row: Mapping[str, Any]) -> int:
    key = archived._asdict()
    found = transaction.execute(_FIND_RUN, key).fetchone()
    if found is None:
        values = key | {name: row[name] for name in _RUN}
        if row["nodes"] is not None:
            values["nodes"] = _encode(row["nodes"])
        if row["tres"] is not None:
            values["tres"] = _encode(dict(row["tres"]))
        values |= {
            "archived": archived.file,
            "archived_updated": row["updated"],
            "archived_start": archived.start,
            "stale": False,
            "unjudged": False,
        }
        transaction.execute(_INSERT_RUN, values)
        found = transaction.execute(_FIND_RUN, key).fetchone()
        if row["details"] is not None:
            transaction.execute(_INSERT_DETAILS, {"id": found[0], "data": row["details"]})
    return int(found[0])


def _node_id(transaction: Transaction, cluster: str, run_id: int, row: Mapping[str, Any]) -> int:
    key = {"cluster": cluster, "job_id": row["job_id"]} | {name: row[name] for name in _NODE}
    found = transaction.execute(_FIND_NODE, key).fetchone()
    if found is None:
        totals = None
        if row["counted"] is not None:
            figures = {name: row[name] for name in _TOTALS}
            totals = _encode(JobTotals(time=row["counted"], **figures))
        coverage = row["coverage"]
        values = key | {name: row[name] for name in _NODE_SUMS} | {"run_id": run_id}
        values["totals"] = totals
        values["coverage"] = None if coverage is None else _encode(msgspec.json.decode(coverage))
        transaction.execute(_INSERT_NODE, values)
        found = transaction.execute(_FIND_NODE, key).fetchone()
    return int(found[0])


def _gpu_columns(row: Mapping[str, Any]) -> list[Any]:
    """The columns of a GPU; its documents are JSON in the archive."""
    values = [row[name] for name in GPU_NAMES]
    for index, name in enumerate(GPU_NAMES):
        if name in ("throttled_time", "faults", "coverage") and values[index] is not None:
            values[index] = _encode(msgspec.json.decode(values[index]))
    return columns_of_gpu(gpu_from_columns(values))


def _restore_findings(
    transaction: Transaction, run_id: int, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Findings that the store no longer has. Their daily rollups were kept."""
    held = {kind for (kind,) in transaction.execute(_KINDS, {"id": run_id}).fetchall()}
    owner = transaction.execute(_OWNER, {"id": run_id}).fetchone()
    restored = []
    for row in rows:
        if row["kind"] in held:
            continue
        cost = {
            inner: None if row[name] is None else round(row[name] * unit)
            for inner, (name, unit) in HOURS.items()
        }
        same = ("kind", "audience", "first", "last", "weight", "data", "reply_user", "reply_time")
        restored.append(
            {name: row[name] for name in same}
            | cost
            | owner_of(*owner)._asdict()
            | {
                "run_id": run_id,
                "severity": SEVERITIES.index(row["severity"]),
                "state": row["finding_state"],
                "work_id": None,
            }
        )
    transaction.execute_many(UPSERT, restored)


def _path_ids(transaction: Transaction, paths: Iterable[bytes]) -> dict[bytes, int]:
    ids = {}
    # Always insert in sorted order to avoid deadlocks.
    digests = {statements.path_digest(path): path for path in paths}
    for digest, path in sorted(digests.items()):
        key = {"digest": digest}
        transaction.execute(statements.INSERT_PATH, key | {"path": path})
        ids[path] = int(transaction.execute(statements.FIND_PATH, key).fetchone()[0])
    return ids


def _restore_series(transaction: Transaction, run_node_id: int, series: SeriesBlock) -> None:
    if not len(series.times):
        return
    node = {"owner": run_node_id, "level": ARRIVED, "summary": None}
    # Samples that arrived after archiving stay behind the archived ones, and take precedence.
    newer = transaction.execute(_NEWER_CHUNKS, node).fetchall()
    times = series.times
    data = codec.encode_quickly(times, series.columns)
    rows = [(int(times[0]), int(times[-1]), len(times), data), *newer]
    transaction.execute(_DELETE_CHUNKS, node)
    transaction.execute_many(
        statements.INSERT_CHUNK, [dict(zip(_CHUNK, row, strict=True)) | node for row in rows]
    )
    join_chunks(transaction, run_node_id, complete=True)
