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
from jobsight.store.database import Database
from jobsight.store.schema.statements import INFO_NAMES
from jobsight.store.snapshot import pack
from jobsight.store.sql.load import load_statements
from jobsight.store.transaction import Transaction
from jobsight.store.write.runs import RunWriter, info_from_columns
from jobsight.store.write.validation import check_info
from jobsight.util.batching import batched

_SQL: Final = load_statements("scheduler")
#: Records in one transaction: the batches of agents wait no longer than these take.
_BATCH_SIZE = 500


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
    #: To be read by :func:`jobsight.store.snapshot.unpack`.
    details: bytes


def record_jobs(
    database: Database,
    infos: Sequence[JobInfo],
    details: Sequence[msgspec.Struct] | None = None,
    now: int | None = None,
) -> int:
    """Merge records of a scheduler; returns how many of them changed or added a run.

    ``details`` has for each info what the columns of a run do not hold. It is stored for infos
    with a start, in the transaction of the run.
    """
    now = time.time_ns() if now is None else now
    for info in infos:
        check_info(info, info.cluster)
    changed = 0
    packed = map(pack, details) if details is not None else [None] * len(infos)
    for batch in batched(zip(infos, packed, strict=True), _BATCH_SIZE):
        with database.write() as transaction:
            changed += _record_batch(transaction, batch, now)
    return changed


def _record_batch(
    transaction: Transaction, batch: Sequence[tuple[JobInfo, bytes | None]], now: int
) -> int:
    infos = [info for info, _ in batch]
    transaction.lock("job", {f"{info.cluster} {info.job_id}" for info in infos})
    writer = RunWriter(transaction, now)
    recorded = writer.record_all(infos)
    writer.flush()
    transaction.execute_many(
        _SQL["set_details"],
        [
            {"run_id": run_id, "now": now, "data": data, "run_changed": run_changed}
            for (info, data), (run_id, run_changed) in zip(batch, recorded, strict=True)
            if data is not None and info.start is not None
        ],
    )
    return sum(run_changed for _, run_changed in recorded)


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
        details=row["details"],
    )
