"""Brings a run of the archive back into the store, beside what is there."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from sqlalchemy import select

from jobsight.archive.reader import Reader, Sighting
from jobsight.model import JobTotals
from jobsight.store.database import Transaction
from jobsight.store.read.external import ArchivedRun
from jobsight.store.schema import statements
from jobsight.store.schema.statements import INFO_NAMES, SUMMED_FIGURES, quoted
from jobsight.store.schema.tables import runs
from jobsight.store.series import codec
from jobsight.store.series.curves import ARRIVED, SeriesBlock, join_chunks
from jobsight.store.store import Store

_encode = msgspec.msgpack.Encoder().encode
_TOTALS = tuple(name for name in JobTotals.__struct_fields__ if name != "time")
_SEEN = ("first_seen", "last_seen")
_FIGURES = ("path_known", "epoch", "sequence", *SUMMED_FIGURES, "peak_memory", *_SEEN)
_SUMS = ("provisional", "cpu_time", "memory_used_peak", "memory_peak", *_SEEN, "updated")
_RUN = (*INFO_NAMES, *_SUMS)
_NODE = ("node", "boot_id", "birth", "sluid", "restart_count", "epoch", "written", "final")
_NODE_SUMS = ("cpu_time", "memory_used_peak", "memory_peak", "first_sample", "last_sample")

_FIND = "SELECT id FROM runs WHERE cluster = :cluster AND job_id = :job_id AND start = :start"
_FIND_NODE = """
    SELECT id FROM run_nodes WHERE cluster = :cluster AND job_id = :job_id AND node = :node
        AND boot_id = :boot_id AND birth = :birth
"""
#: Those that were thinned out say nothing that the archive does not say better.
_OWN_CHUNKS = """
    SELECT first, last, rows, data FROM chunks
    WHERE run_node_id = :run_node_id AND resolution IS NULL ORDER BY id
"""
_DELETE_CHUNKS = "DELETE FROM chunks WHERE run_node_id = :run_node_id"


def _insert(table: str, names: tuple[str, ...]) -> str:
    columns = ", ".join(map(quoted, names))
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join(f':{name}' for name in names)})"


_KEY = ("cluster", "job_id", "start")
# The sums by day hold the run already: it is not stale.
_MARKS = ("archived", "archived_updated", "archived_start", "stale")
_INSERT_RUN = _insert("runs", (*_KEY, *_RUN, *_MARKS))
_INSERT_NODE = _insert(
    "run_nodes",
    ("run_id", "cluster", "job_id", *_NODE, "totals", "coverage", *_NODE_SUMS),
)


def restore(store: Store, reader: Reader, archived: ArchivedRun, into: int | None = None) -> bool:
    """Bring a run back whole; False where the store has all of it. ``into`` names the row of a
    run whose start has changed since it was archived."""
    if into is None and not needed(store, archived):
        return False
    row = reader.run(archived)
    sightings = list(reader.sightings(archived))
    executables = reader.rows(archived, "executables")
    steps = reader.rows(archived, "steps")
    with store.database.write() as transaction:
        # Locks in one order everywhere: jobs, then paths.
        transaction.lock("job", [f"{archived.cluster} {archived.job_id}"])
        run_id = into or _run(transaction, archived, row)
        nodes = {
            sighting.row["sighting"]: _node(transaction, archived.cluster, run_id, sighting)
            for sighting in sightings
        }
        paths = _paths(transaction, {one["path"] for one in executables})
        transaction.execute_many(
            statements.UPSERT_EXECUTABLE,
            [_executable(nodes[one["sighting"]], one, paths) for one in executables],
        )
        transaction.execute_many(
            statements.UPSERT_STEP,
            [one | {"run_node_id": nodes[one["sighting"]]} for one in steps],
        )
        for sighting in sightings:
            _series(transaction, nodes[sighting.row["sighting"]], sighting.curves)
        transaction.execute("UPDATE runs SET pruned = 0 WHERE id = :id", {"id": run_id})
    return True


def needed(store: Store, archived: ArchivedRun) -> bool:
    """Whether the store lacks the run, or a part of it."""
    whole = select(runs.c.id).where(
        runs.c.cluster == archived.cluster,
        runs.c.job_id == archived.job_id,
        runs.c.start == archived.start,
        runs.c.pruned == 0,
    )
    with store.database.read() as connection:
        return connection.scalar(whole) is None


def _run(transaction: Transaction, archived: ArchivedRun, row: dict[str, Any]) -> int:
    key = archived._asdict()
    found = transaction.execute(_FIND, key).fetchone()
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
        }
        transaction.execute(_INSERT_RUN, values)
        found = transaction.execute(_FIND, key).fetchone()
        if row["details"] is not None:
            transaction.execute(
                "INSERT INTO run_details (run_id, data) VALUES (:id, :data)",
                {"id": found[0], "data": row["details"]},
            )
    return int(found[0])


def _node(transaction: Transaction, cluster: str, run_id: int, sighting: Sighting) -> int:
    row = sighting.row
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


def _executable(run_node_id: int, row: dict[str, Any], paths: dict[bytes, int]) -> dict[str, Any]:
    values = {name: row[name] for name in _FIGURES}
    return values | {"run_node_id": run_node_id, "path_id": paths[row["path"]]}


def _paths(transaction: Transaction, paths: set[bytes]) -> dict[bytes, int]:
    found = {}
    for digest, path in sorted(
        (hashlib.blake2b(one, digest_size=16).digest(), one) for one in paths
    ):
        key = {"digest": digest}
        transaction.execute(statements.INSERT_PATH, key | {"path": path})
        found[path] = int(transaction.execute(statements.FIND_PATH, key).fetchone()[0])
    return found


def _series(transaction: Transaction, run_node_id: int, curves: SeriesBlock) -> None:
    if not len(curves.times):
        return
    node = {"run_node_id": run_node_id, "level": ARRIVED, "summary": None}
    # What came after the archiving comes after it here, too, and wins.
    own = transaction.execute(_OWN_CHUNKS, node).fetchall()
    rows = [
        {
            "first": int(curves.times[0]),
            "last": int(curves.times[-1]),
            "rows": len(curves.times),
            "data": codec.encode_quickly(curves.times, curves.columns),
        }
    ]
    rows += [dict(zip(("first", "last", "rows", "data"), chunk, strict=True)) for chunk in own]
    transaction.execute(_DELETE_CHUNKS, node)
    transaction.execute_many(statements.INSERT_CHUNK, [row | node for row in rows])
    join_chunks(transaction, run_node_id, whole=True)
