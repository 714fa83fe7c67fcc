"""Upsert of runs, and the match of sightings to runs.

A node knows when the cgroup of a job was created, the scheduler when the run started. They are
matched by the SLUID or the restart count if both sides know it, else by time. :class:`RunWriter`
does this within a transaction; the decisions (``match_run``, ``run_of_info``) are functions below
it that read no database.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from jobsight.model import SECOND, JobInfo, Sighting, merge_job_info
from jobsight.store.database import Transaction
from jobsight.store.findings.write import delete_findings
from jobsight.store.schema import statements
from jobsight.store.schema.statements import HIGHEST, RunSums
from jobsight.store.write.precedence import (
    SIGHTED,
    complete_run_info,
    fill_run_info,
    merge_run_info,
)

_NO_SUMS: Final[Mapping[int, Sequence[int | None]]] = {}

logger = logging.getLogger(__name__)

_INFO = JobInfo.__struct_fields__
_encode = msgspec.msgpack.Encoder().encode
_decode_nodes = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_decode_tres = msgspec.msgpack.Decoder(dict[str, int]).decode


class RunWriter:
    """The runs of some jobs: read with one query, changed in memory, written by :meth:`flush`."""

    def __init__(self, transaction: Transaction, now: int) -> None:
        self._transaction = transaction
        self._now = now
        #: All runs of a job by its cluster and id, sorted by start.
        self._jobs: dict[tuple[str, int], list[RunRow]] = {}
        self._seen: dict[tuple[str, int], bool] = {}
        self._protected: Container[int] = ()
        #: Jobs without a stored run.
        self._new_jobs: set[tuple[str, int]] = set()
        self._new: dict[int, RunRow] = {}
        self._changed: dict[int, RunRow] = {}
        #: Runs with a matched sighting that is not in the tables yet.
        self._matched: set[int] = set()

    def record_all(
        self, infos: Sequence[JobInfo], protected: Container[int] = ()
    ) -> list[tuple[int, bool]]:
        """Merge records of a scheduler or launcher; the run id of each, and whether it changed.

        A run of the ids ``protected`` that has ended is completed, but not changed.
        """
        self._protected = protected
        jobs = list(dict.fromkeys((info.cluster, info.job_id) for info in infos))
        self._load(jobs)
        self._new_jobs = {job for job in jobs if not self._jobs[job]}
        self._seen = dict.fromkeys(jobs, False)
        known = [job for job in jobs if job not in self._new_jobs]
        for cluster, job_id in self._transaction.look_up(statements.JOBS_SEEN, known):
            self._seen[cluster, job_id] = True
        return [self._record(info) for info in infos]

    def _record(self, info: JobInfo) -> tuple[int, bool]:
        info = _storable(info)
        rows = self._rows(info.cluster, info.job_id)
        row = run_of_info(rows, info)
        if row is None:
            row = self._insert(info)
            rematch = info.start is not None
        else:
            before = _matching_fields(row)
            if row.id in self._protected and row.info.end is not None:
                merged = fill_run_info(row.info, info)
            else:
                merged = merge_run_info(row.info, info)
            if merged == row.info:
                return row.id, False
            logger.debug(
                "job %d, run %d: information of %s merged into that of %s",
                *(info.job_id, row.id, info.source, row.info.source),
            )
            row.info = merged
            if row.info.start is not None:
                row.provisional = False
                row.start = self._free_start(rows, row.info.start, row)
            self._update(row, moved=row.start != before[0])
            rematch = before != _matching_fields(row)
        # Most jobs are recorded once, before any node has reported them.
        if rematch and (len(rows) > 1 or self._seen[info.cluster, info.job_id]):
            self._rematch(info.cluster, info.job_id)
        return row.id, True

    def knows(self, cluster: str, job_id: int) -> bool:
        """Whether a run of the job may have been stored before."""
        return (cluster, job_id) not in self._new_jobs

    def match(self, sighting: Sighting) -> tuple[int, bool]:
        """The id of the run of a new sighting, and whether the run is new."""
        rows = self._rows(sighting.cluster, sighting.job_id)
        row = match_run(rows, sighting) or provisional_of_sighting(rows, sighting)
        if row is None:
            row = next((row for row in rows if self._is_pending(row, sighting)), None)
            if row is None:
                row = self._insert_provisional(rows, sighting)
            else:
                row.start = self._free_start(rows, sighting.birth, row)
                self._update(row, moved=True)
        logger.debug(
            "sighting of job %d on %s, created %d: run %d of %d known, start %d, %s",
            *(sighting.job_id, sighting.node, sighting.birth, row.id, len(rows), row.start),
            "provisional" if row.provisional else "recorded",
        )
        self._matched.add(row.id)
        return row.id, row.id in self._new

    def complete(self, sighting: Sighting, info: JobInfo) -> None:
        """Add a record without a start to the run of its sighting.

        Such a record does not identify a run. What a scheduler has recorded takes precedence.
        """
        info = _storable(info)
        run_id, _ = self.match(sighting)
        (row,) = (row for row in self._rows(info.cluster, info.job_id) if row.id == run_id)
        if row.info.source == SIGHTED:
            merged = merge_job_info(row.info, info, "overwrite")
        else:
            merged = complete_run_info(row.info, info)
        if merged != row.info:
            row.info = merged
            self._update(row)

    def flush(self, sums: Mapping[int, Sequence[int | None]] = _NO_SUMS) -> set[int]:
        """Write new runs, with their sums in the order of RunSums, and changed runs; returns the
        ids of the new ones."""
        new = [
            (
                *(row.info.cluster, row.info.job_id),
                *self._values(row),
                *sums.get(id, RunSums()),
            )
            for id, row in self._new.items()
        ]
        self._transaction.execute_rows(statements.INSERT_RUN, new)
        changed = [self._values(row) for id, row in self._changed.items() if id not in self._new]
        self._transaction.execute_rows(statements.UPDATE_RUN, changed)
        written = set(self._new)
        self._new, self._changed = {}, {}
        return written

    def _values(self, row: RunRow) -> tuple[Any, ...]:
        return (row.start, row.provisional, self._now, *_columns(row.info), row.id)

    def sum_up(self, run_id: int) -> None:
        """Compute the figures of a run from all its nodes."""
        nodes: dict[str, list[Any]] = {}
        open_nodes: int | None = None
        first: list[int] = []
        last: list[int] = []
        figures = self._transaction.execute(statements.FIGURES_OF_RUN, {"id": run_id}).fetchall()
        for node, *values, final, first_sample, last_sample in figures:
            nodes.setdefault(node, []).append(values)
            open_nodes = (open_nodes or 0) + (not final)
            if first_sample is not None:
                first.append(first_sample)
                last.append(last_sample)
        by_node = [of_node(rows) for rows in nodes.values()]
        cpu_time, memory_used_peak, memory_peak = (
            total([figures[index] for figures in by_node]) for index in range(3)
        )
        # Imported late: that module takes sums from here.
        from jobsight.store.write.gpus import sum_rows

        gpus = self._transaction.execute(statements.GPUS_OF_RUN, {"id": run_id}).fetchall()
        sums = RunSums(
            cpu_time=cpu_time,
            memory_used_peak=memory_used_peak,
            memory_peak=memory_peak,
            open_nodes=open_nodes,
            sightings=len(figures) or None,
            reporting_nodes=len(nodes) or None,
            first_seen=min(first, default=None),
            last_seen=max(last, default=None),
            **sum_rows(gpus)._asdict(),
        )
        self._transaction.execute(
            statements.UPDATE_SUMS, {"id": run_id, "updated": self._now, **sums._asdict()}
        )

    def _rematch(self, cluster: str, job_id: int) -> None:
        """Match the sightings of a job again and delete provisional runs that became empty."""
        rows = self._rows(cluster, job_id)
        by_id = {row.id: row for row in rows}
        changed: set[int] = set()
        #: The new run of the sightings that left a run.
        moved: dict[int, RunRow] = {}
        for id, run_id, *values in self._sightings(cluster, job_id):
            sighting = Sighting(cluster, job_id, *values)
            row = match_run(rows, sighting)
            if row is None and not by_id[run_id].provisional:
                row = provisional_of_sighting(rows, sighting)
                if row is None:
                    row = self._insert_provisional(rows, sighting)
            if row is not None and row.id != run_id:
                if row.id in self._new:
                    self.flush()
                move = {"id": id, "run_id": row.id}
                self._transaction.execute(statements.MOVE_RUN_NODE, move)
                changed |= {run_id, row.id}
                moved[run_id] = row
                logger.debug("job %d: a sighting moved from run %d to %d", job_id, run_id, row.id)
        self._merge_empty_runs(rows, moved)
        for run_id in changed & {row.id for row in rows}:
            self.sum_up(run_id)

    def _sightings(self, cluster: str, job_id: int) -> list[Any]:
        if not self._seen[cluster, job_id]:
            return []
        job = {"cluster": cluster, "job_id": job_id}
        return self._transaction.execute(statements.SIGHTINGS_OF_JOB, job).fetchall()

    def _merge_empty_runs(self, rows: list[RunRow], moved: Mapping[int, RunRow]) -> None:
        """Merge provisional runs without nodes into the run that the scheduler recorded."""
        recorded = [row for row in rows if not row.provisional]
        for empty in [row for row in rows if row.provisional and self._is_empty(row)]:
            targets = [row for row in recorded if is_pending_run(empty, row.info)]
            if empty.id in moved:
                targets = [moved[empty.id]]
            if not targets:
                continue
            target = max(targets, key=lambda row: row.start)
            if self._new.pop(empty.id, None) is None:
                remove_run(self._transaction, empty.id)
            self._changed.pop(empty.id, None)
            rows.remove(empty)
            target.info = complete_run_info(target.info, empty.info)
            self._update(target)
            logger.debug("run %d merged into run %d", empty.id, target.id)

    def _is_empty(self, row: RunRow) -> bool:
        if row.id in self._new or row.id in self._matched:
            return row.id not in self._matched
        count = self._transaction.execute(statements.COUNT_NODES_OF_RUN, {"id": row.id})
        return int(count.fetchone()[0]) == 0

    def _is_pending(self, row: RunRow, sighting: Sighting) -> bool:
        seen = JobInfo(
            cluster=sighting.cluster,
            job_id=sighting.job_id,
            source=SIGHTED,
            sluid=sighting.sluid,
            restart_count=sighting.restart_count,
        )
        return is_pending_run(row, seen) and self._is_empty(row)

    def _insert_provisional(self, rows: list[RunRow], sighting: Sighting) -> RunRow:
        info = JobInfo(
            cluster=sighting.cluster,
            job_id=sighting.job_id,
            source=SIGHTED,
            sluid=sighting.sluid,
            restart_count=sighting.restart_count,
        )
        return self._insert(info, self._free_start(rows, sighting.birth))

    def _insert(self, info: JobInfo, created: int | None = None) -> RunRow:
        rows = self._rows(info.cluster, info.job_id)
        provisional = info.start is None
        start = (created or info.submit or self._now) if info.start is None else info.start
        start = self._free_start(rows, start)
        info = msgspec.structs.replace(info, start=None if provisional else start)
        row = RunRow(self._transaction.new_id("runs"), start, provisional, info)
        self._new[row.id] = row
        rows.append(row)
        rows.sort(key=lambda row: row.start)
        return row

    def _update(self, row: RunRow, moved: bool = False) -> None:
        # The key's start, which no other run of the job has.
        row.info.start = None if row.provisional else row.start
        self._changed[row.id] = row
        if moved:
            self._rows(row.info.cluster, row.info.job_id).sort(key=lambda row: row.start)
            # Written at once: the next run may take the start that became free.
            self.flush()

    @staticmethod
    def _free_start(rows: list[RunRow], start: int, own: RunRow | None = None) -> int:
        """The start, or the next nanosecond that no other run of the job has as its key."""
        taken = {row.start for row in rows if own is None or row.id != own.id}
        while start in taken:
            start += 1
        return start

    def _rows(self, cluster: str, job_id: int) -> list[RunRow]:
        """The current runs of a job, sorted by start."""
        if (cluster, job_id) not in self._jobs:
            self._load([(cluster, job_id)])
        return self._jobs[cluster, job_id]

    def _load(self, jobs: Sequence[tuple[str, int]]) -> None:
        self._jobs |= {job: [] for job in jobs}
        for cluster, job_id, *values in self._transaction.look_up(statements.RUNS_OF_JOBS, jobs):
            self._jobs[cluster, job_id].append(_row(cluster, job_id, *values))


def remove_run(transaction: Transaction, run_id: int) -> None:
    """Delete a run without nodes that never happened, or is a part of another one."""
    delete_findings(transaction, [run_id])
    for statement in statements.REMOVE_RUN:
        transaction.execute(statement, {"id": run_id})


def _matching_fields(row: RunRow) -> tuple[object, ...]:
    """The fields of a run that decide which sightings match it."""
    return row.start, row.provisional, row.info.end, row.info.sluid, row.info.restart_count


def of_node(rows: list[Any]) -> tuple[int | None, int | None, int | None]:
    """The figures of one node from its sightings: CPU times add up, peaks do not."""
    peaks = [[row[index] for row in rows if row[index] is not None] for index in (1, 2)]
    return total([row[0] for row in rows]), max(peaks[0], default=None), max(peaks[1], default=None)


def total(values: list[int | None]) -> int | None:
    """The sum of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return max(min(sum(known), HIGHEST), -HIGHEST) if known else None


def info_from_columns(
    cluster: str, job_id: int, start: int | None, values: dict[str, Any]
) -> JobInfo:
    """A JobInfo from the columns of ``runs``."""
    nodes, tres = values.pop("nodes"), values.pop("tres")
    return JobInfo(
        cluster=cluster,
        job_id=job_id,
        start=start,
        nodes=None if nodes is None else _decode_nodes(nodes),
        tres=None if tres is None else _decode_tres(tres),
        **values,
    )


def _row(
    cluster: str, job_id: int, id: int, start: int, provisional: object, *values: Any
) -> RunRow:
    columns = dict(zip(statements.INFO_NAMES, values, strict=True))
    recorded = None if provisional else start
    info = info_from_columns(cluster, job_id, recorded, columns)
    return RunRow(id, start, bool(provisional), info)


_columns_as_they_are = attrgetter(*statements.INFO_NAMES)
_DOCUMENTS = tuple(map(statements.INFO_NAMES.index, ("nodes", "tres")))


def _columns(info: JobInfo) -> Sequence[Any]:
    values: tuple[Any, ...] = _columns_as_they_are(info)
    if info.nodes is None and info.tres is None:
        return values
    columns = list(values)
    for index in _DOCUMENTS:
        if columns[index] is not None:
            columns[index] = _encode(columns[index])
    return columns


def _storable(info: JobInfo) -> JobInfo:
    """Escape what a database does not store in text: NUL (PostgreSQL) and lone surrogates."""
    values = msgspec.structs.astuple(info)
    joined = "".join([value for value in values if type(value) is str])
    if joined.isascii() and "\x00" not in joined:
        return info
    changes = {}
    for name, value in zip(_INFO, values, strict=True):
        if isinstance(value, str) and ("\x00" in value or not value.isascii()):
            text = value.encode("utf-8", "backslashreplace").decode()
            changes[name] = text.replace("\x00", "\\x00")
    return msgspec.structs.replace(info, **changes) if changes else info


#: How far a creation time may lie outside the interval that the scheduler recorded: prologs and
#: differences between clocks.
CLOCK_TOLERANCE = 60 * SECOND
#: The same if the restart count agrees: it only has to distinguish ids that wrapped around.
RESTART_TOLERANCE = 24 * 3600 * SECOND


class RunRow(msgspec.Struct):
    """A stored run."""

    id: int
    start: int
    provisional: bool
    info: JobInfo


def match_run(rows: Sequence[RunRow], sighting: Sighting) -> RunRow | None:
    """The run of a sighting by the records of the scheduler."""
    fitting = rows
    if sighting.sluid is None and sighting.restart_count is None:
        # Nearly all jobs run once.
        if len(rows) == 1:
            return rows[0] if _in_time(rows[0], sighting) else None
    else:
        fitting = [row for row in rows if not _contradict(row.info, sighting)]
        for test in (_same_sluid, _same_restart):
            matching = [row for row in fitting if test(row, sighting)]
            if matching:
                return _latest(matching)
    started = [row for row in fitting if _has_started(row, sighting)]
    if started:
        return _latest(started)
    # Clocks differ: the nearest run whose recorded start is after the creation time.
    near = [row for row in fitting if _in_time(row, sighting)]
    return min(near, key=lambda row: abs(row.start - sighting.birth), default=None)


def _latest(rows: Sequence[RunRow]) -> RunRow:
    """The run that started last; recorded runs take precedence over provisional ones."""
    return max(rows, key=lambda row: (not row.provisional, row.start))


def provisional_of_sighting(rows: Sequence[RunRow], sighting: Sighting) -> RunRow | None:
    """The provisional run of other nodes that reported the job at about the same time."""
    near = [
        row
        for row in rows
        if row.provisional
        and abs(row.start - sighting.birth) <= CLOCK_TOLERANCE
        and not _contradict(row.info, sighting)
    ]
    return min(near, key=lambda row: abs(row.start - sighting.birth), default=None)


def run_of_info(rows: Sequence[RunRow], info: JobInfo) -> RunRow | None:
    """The stored run of a record of the scheduler."""
    fitting = [row for row in rows if not _contradict(row.info, info)]
    recorded = [row for row in fitting if not row.provisional]
    for row in recorded:
        # Schedulers record whole seconds, launchers nanoseconds.
        if info.start is not None and row.start // SECOND == info.start // SECOND:
            return row
    for row in (*recorded, *fitting):
        if info.sluid is not None and row.info.sluid == info.sluid:
            return row
    if info.start is None:
        return _run_without_start(fitting, info)
    for row in recorded:
        same_restart = info.restart_count is not None
        same_restart &= row.info.restart_count == info.restart_count
        if same_restart and info.submit is not None and row.info.submit == info.submit:
            return row
    return None


def _run_without_start(fitting: Sequence[RunRow], info: JobInfo) -> RunRow | None:
    """A record without a start is of a pending job, or completes a known run."""
    latest = max(fitting, key=lambda row: row.start, default=None)
    if latest is None:
        return None
    pending = info.state == "PENDING" and info.end is None
    # A job that is pending after the end of a run was requeued.
    return None if pending and latest.info.end is not None else latest


def is_pending_run(row: RunRow, info: JobInfo) -> bool:
    """Whether a provisional run without nodes is the one whose start ``info`` reports."""
    return row.provisional and row.info.end is None and not _contradict(row.info, info)


def _contradict(info: JobInfo, other: JobInfo | Sighting) -> bool:
    return _differ(info.sluid, other.sluid) or _differ(info.restart_count, other.restart_count)


def _differ(known: object, other: object) -> bool:
    return known is not None and other is not None and known != other


def _same_sluid(row: RunRow, sighting: Sighting) -> bool:
    return sighting.sluid is not None and row.info.sluid == sighting.sluid


def _same_restart(row: RunRow, sighting: Sighting) -> bool:
    known = sighting.restart_count is not None and not row.provisional
    same = known and row.info.restart_count == sighting.restart_count
    return same and _contains(row, sighting.birth, RESTART_TOLERANCE)


def _has_started(row: RunRow, sighting: Sighting) -> bool:
    """Whether the run had started when the cgroup was created.

    A requeued job runs again within seconds, so there is no tolerance for the start.
    """
    return row.start <= sighting.birth + SECOND and _in_time(row, sighting)


def _in_time(row: RunRow, sighting: Sighting) -> bool:
    return not row.provisional and _contains(row, sighting.birth, CLOCK_TOLERANCE)


def _contains(row: RunRow, time: int, tolerance: int) -> bool:
    end = row.info.end
    return row.start - tolerance <= time and (end is None or time <= end + tolerance)
