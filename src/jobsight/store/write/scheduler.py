"""Runs as the scheduler reports them, outside of batches.

:func:`record_jobs` merges job records by the rules that hold for batches, with the details of a
run in the same transaction. :func:`open_runs` lists the runs that a scrape queries by id;
:func:`changed_runs` and :func:`running_runs` are what sinks are fed with.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from jobsight.model import JobInfo
from jobsight.store.chains import link_runs
from jobsight.store.database import Database
from jobsight.store.schema import statements
from jobsight.store.schema.statements import INFO_NAMES
from jobsight.store.snapshot import complete, pack, unpack_fields
from jobsight.store.sql.load import load_statements
from jobsight.store.transaction import Transaction
from jobsight.store.write.gpus import GpuSums
from jobsight.store.write.runs import RunWriter, info_from_columns, remove_run
from jobsight.store.write.validation import BatchError, check_info
from jobsight.util.batching import batched

_SQL: Final = load_statements("scheduler")
#: Records in one transaction: the batches of agents wait no longer than these take.
_BATCH_SIZE = 500
_DETAILS_OF_JOBS: Final = """
    WITH wanted(cluster, job_id) AS (VALUES :keys)
    SELECT runs.id, run_details.data
    FROM wanted CROSS JOIN runs JOIN run_details ON run_details.run_id = runs.id
    WHERE runs.cluster = wanted.cluster AND runs.job_id = wanted.job_id
"""
_OPEN_DETAILS_OF_JOBS: Final = """
    WITH wanted(cluster, job_id) AS (VALUES :keys)
    SELECT runs.id, runs.job_id, runs.start, run_details.changed, run_details.data
    FROM wanted CROSS JOIN runs JOIN run_details ON run_details.run_id = runs.id
    WHERE runs.cluster = wanted.cluster AND runs.job_id = wanted.job_id
        AND runs."end" IS NULL AND NOT runs.provisional
"""


class OpenRun(NamedTuple):
    """A run whose end is not known."""

    job_id: int
    #: None if no scheduler has reported one.
    start: int | None
    state: str | None
    source: str
    name: str | None
    partition: str | None


class ReportedRun(NamedTuple):
    """A run with its details, for sinks."""

    run_id: int
    #: When the scheduler last reported something new.
    changed: int
    info: JobInfo
    cpu_time: int | None
    memory_used_peak: int | None
    memory_peak: int | None
    gpus: GpuSums
    #: To be read by :func:`jobsight.store.snapshot.unpack`.
    details: bytes


def record_jobs(
    database: Database,
    infos: Sequence[JobInfo],
    details: Sequence[msgspec.Struct] | None = None,
    now: int | None = None,
    *,
    completing: bool = False,
) -> int:
    """Merge records of a scheduler; returns how many of them changed or added a run.

    ``details`` has for each info what the columns of a run do not hold. It is stored for infos
    with a start, in the transaction of the run. With ``completing`` the records are the
    controller's: of a run that the accounting has recorded they only add what is not known.
    """
    now = time.time_ns() if now is None else now
    for info in infos:
        check_info(info, info.cluster)
    changed = 0
    packed = _pack_all(infos, details)
    for batch in batched(zip(infos, packed, strict=True), _BATCH_SIZE):
        with database.write() as transaction:
            changed += _record_batch(transaction, batch, now, completing)
    return changed


def _pack_all(
    infos: Sequence[JobInfo], details: Sequence[msgspec.Struct] | None
) -> Sequence[bytes | None]:
    """All details before the first is written, so that none fails in the middle."""
    if details is None:
        return [None] * len(infos)
    packed = []
    for info, each in zip(infos, details, strict=True):
        try:
            packed.append(pack(each))
        except (ValueError, OverflowError, RecursionError, TypeError):
            raise BatchError(f"the details of job {info.job_id} cannot be encoded") from None
    return packed


def _record_batch(
    transaction: Transaction,
    batch: Sequence[tuple[JobInfo, bytes | None]],
    now: int,
    completing: bool,
) -> int:
    infos = [info for info, _ in batch]
    transaction.lock("job", {f"{info.cluster} {info.job_id}" for info in infos})
    accounted: dict[int, bytes] = {}
    if completing:
        jobs = list(dict.fromkeys((info.cluster, info.job_id) for info in infos))
        accounted = {
            run_id: data
            for run_id, data in transaction.look_up(_DETAILS_OF_JOBS, jobs)
            if is_accounted(data)
        }
    writer = RunWriter(transaction, now)
    recorded = writer.record_all(infos, accounted)
    writer.flush()
    rows = [
        {
            "run_id": run_id,
            "now": now,
            "data": complete(accounted[run_id], data) if run_id in accounted else data,
            "run_changed": run_changed,
        }
        for (info, data), (run_id, run_changed) in zip(batch, recorded, strict=True)
        if data is not None and info.start is not None
    ]
    transaction.execute_many(_SQL["set_details"], rows)
    link_runs(transaction, zip((run_id for run_id, _ in recorded), infos, strict=True))
    # Details that came after the record of the run are figures of the rules, too.
    transaction.execute_many(
        _SQL["judge_again"],
        [{"run_id": r["run_id"], "now": now} for r in rows if not r["run_changed"]],
    )
    return sum(run_changed for _, run_changed in recorded)


def is_accounted(details: bytes) -> bool:
    """Whether the accounting has recorded the run of these details."""
    return bool(unpack_fields(details).get("accounted"))


def drop_unrecorded_runs(
    database: Database, cluster: str, runs: Sequence[tuple[int, int]], unchanged_since: int
) -> int:
    """Delete runs, by job id and start, that never happened; returns how many.

    Deleted is only what the controller alone reported, and last before ``unchanged_since``: a run
    that a node or the accounting has seen happened.
    """
    wanted = set(runs)
    jobs = list(dict.fromkeys((cluster, job_id) for job_id, _ in runs))
    dropped = 0
    with database.write() as transaction:
        transaction.lock("job", {f"{cluster} {job_id}" for _, job_id in jobs})
        found = [
            run_id
            for run_id, key, changed, data in _open_details(transaction, jobs)
            if key in wanted and changed <= unchanged_since and not is_accounted(data)
        ]
        for run_id in found:
            nodes = transaction.execute(statements.COUNT_NODES_OF_RUN, {"id": run_id})
            if int(nodes.fetchone()[0]) == 0:
                dropped += 1
                remove_run(transaction, run_id)
    return dropped


def _open_details(
    transaction: Transaction, jobs: Sequence[tuple[str, int]]
) -> list[tuple[int, tuple[int, int], int, bytes]]:
    rows = transaction.look_up(_OPEN_DETAILS_OF_JOBS, jobs)
    return [(id, (job_id, start), changed, data) for id, job_id, start, changed, data in rows]


def open_runs(transaction: Transaction, cluster: str) -> list[OpenRun]:
    """The runs of a cluster whose end is not known, by job id and start."""
    rows = transaction.execute(_SQL["open_runs"], {"cluster": cluster}).fetchall()
    return [
        OpenRun(job_id, None if provisional else start, *others)
        for job_id, start, provisional, *others in sorted(rows, key=lambda row: tuple(row[:2]))
    ]


def changed_runs(transaction: Transaction, after: tuple[int, int], limit: int) -> list[ReportedRun]:
    """Runs that changed after a time and run id, in the order of both."""
    parameters = {"changed": after[0], "run_id": after[1], "limit": limit}
    return [_reported(row) for row in transaction.mappings(_SQL["changed_runs"], parameters)]


def running_runs(transaction: Transaction, after: int, limit: int) -> list[ReportedRun]:
    """Runs that have not ended, by run id: their measured figures change between scrapes."""
    parameters = {"run_id": after, "limit": limit}
    return [_reported(row) for row in transaction.mappings(_SQL["running_runs"], parameters)]


def _reported(row: Mapping[str, Any]) -> ReportedRun:
    start = None if row["provisional"] else row["start"]
    columns = {name: row[name] for name in INFO_NAMES}
    return ReportedRun(
        run_id=row["id"],
        changed=row["changed"],
        info=info_from_columns(row["cluster"], row["job_id"], start, columns),
        cpu_time=row["cpu_time"],
        memory_used_peak=row["memory_used_peak"],
        memory_peak=row["memory_peak"],
        gpus=GpuSums(*(row[name] for name in GpuSums._fields)),
        details=row["details"],
    )
