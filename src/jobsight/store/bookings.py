"""The runs of a job inside one transaction: records merged, sightings bound and bound anew."""

from __future__ import annotations

from typing import Any

import msgspec

from jobsight.model import JobInfo, Sighting
from jobsight.store import statements
from jobsight.store.binding import (
    RunRow,
    is_waiting_run,
    merge,
    provisional_of_sighting,
    run_of_info,
    run_of_sighting,
)
from jobsight.store.database import Transaction

#: The source of a run that only nodes have seen.
SIGHTED = "sighting"
#: Sums of figures stop here instead of running over.
HIGHEST = 2**63 - 1

_encode = msgspec.msgpack.Encoder().encode
_decode_nodes = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_decode_tres = msgspec.msgpack.Decoder(dict[str, int]).decode


class Bookings:
    """Reads and writes the runs of one batch's jobs."""

    def __init__(self, transaction: Transaction, now: int) -> None:
        self._transaction = transaction
        self._now = now

    def record(self, info: JobInfo) -> bool:
        """Take over a record of the scheduler or a launcher; False where nothing was new in it."""
        info = _storable(info)
        rows = self._rows(info.cluster, info.job_id)
        row = run_of_info(rows, info)
        if row is None:
            self._insert(info)
            moved = info.start is not None
        else:
            before = _interval(row)
            merged = merge(row.info, info)
            if merged == row.info:
                return False
            row.info = merged
            if row.info.start is not None:
                row.provisional = False
                row.start = self._free_start(rows, row.info.start, row)
            self._update(row)
            moved = before != _interval(row)
        if moved:
            self._bind_anew(info.cluster, info.job_id)
        return True

    def bind(self, sighting: Sighting) -> int:
        """The id of the run that a new sighting belongs to; a provisional one if need be."""
        rows = self._rows(sighting.cluster, sighting.job_id)
        row = run_of_sighting(rows, sighting) or provisional_of_sighting(rows, sighting)
        if row is None:
            row = next((row for row in rows if self._waits_for(row, sighting)), None)
            if row is None:
                return self._insert_provisional(rows, sighting)
            row.start = self._free_start(rows, sighting.birth, row)
            self._update(row)
        return row.id

    def sum_up(self, run_id: int) -> None:
        """Work out the figures of a run from all its nodes."""
        nodes: dict[str, list[Any]] = {}
        first: list[int] = []
        last: list[int] = []
        figures = self._transaction.execute(statements.FIGURES_OF_RUN, {"id": run_id}).fetchall()
        for node, *values, first_sample, last_sample in figures:
            nodes.setdefault(node, []).append(values)
            if first_sample is not None:
                first.append(first_sample)
                last.append(last_sample)
        by_node = [of_node(rows) for rows in nodes.values()]
        cpu_time, memory_used_peak, memory_peak = (
            total([figures[place] for figures in by_node]) for place in range(3)
        )
        self._transaction.execute(
            statements.ADD_TO_RUN,
            {
                "id": run_id,
                "updated": self._now,
                "cpu_time": cpu_time,
                "memory_used_peak": memory_used_peak,
                "memory_peak": memory_peak,
                "first_seen": min(first, default=None),
                "last_seen": max(last, default=None),
            },
        )

    def _bind_anew(self, cluster: str, job_id: int) -> None:
        """Give each sighting of a job to the run that the records now say; drop empty husks."""
        job = {"cluster": cluster, "job_id": job_id}
        rows = self._rows(cluster, job_id)
        by_id = {row.id: row for row in rows}
        changed: set[int] = set()
        sightings = self._transaction.execute(statements.RUN_NODES_OF_JOB, job).fetchall()
        for id, run_id, node, boot_id, birth, sluid, restart_count in sightings:
            sighting = Sighting(cluster, job_id, node, boot_id, birth, sluid, restart_count)
            row = run_of_sighting(rows, sighting)
            if row is None and not by_id[run_id].provisional:
                row = provisional_of_sighting(rows, sighting)
                if row is None:
                    self._insert_provisional(rows, sighting)
                    rows = self._rows(cluster, job_id)
                    row = provisional_of_sighting(rows, sighting)
            if row is not None and row.id != run_id:
                move = {"id": id, "run_id": row.id}
                self._transaction.execute(statements.MOVE_RUN_NODE, move)
                changed |= {run_id, row.id}
        self._absorb(rows)
        for run_id in changed & {row.id for row in rows}:
            self.sum_up(run_id)

    def _absorb(self, rows: list[RunRow]) -> None:
        """Provisional runs without nodes become part of the run that was booked."""
        booked = [row for row in rows if not row.provisional]
        for husk in [row for row in rows if row.provisional and self._is_empty(row)]:
            heirs = [row for row in booked if is_waiting_run(husk, row.info)]
            if not heirs:
                continue
            heir = max(heirs, key=lambda row: row.start)
            for statement in statements.REMOVE_RUN:
                self._transaction.execute(statement, {"id": husk.id})
            rows.remove(husk)
            source = heir.info.source
            heir.info = merge(husk.info, heir.info)
            heir.info.source = source
            self._update(heir)

    def _is_empty(self, row: RunRow) -> bool:
        found = self._transaction.execute(statements.COUNT_NODES_OF_RUN, {"id": row.id})
        return int(found.fetchone()[0]) == 0

    def _waits_for(self, row: RunRow, sighting: Sighting) -> bool:
        seen = JobInfo(
            cluster=sighting.cluster,
            job_id=sighting.job_id,
            source=SIGHTED,
            sluid=sighting.sluid,
            restart_count=sighting.restart_count,
        )
        return is_waiting_run(row, seen) and self._is_empty(row)

    def _insert_provisional(self, rows: list[RunRow], sighting: Sighting) -> int:
        info = JobInfo(
            cluster=sighting.cluster,
            job_id=sighting.job_id,
            source=SIGHTED,
            sluid=sighting.sluid,
            restart_count=sighting.restart_count,
        )
        return self._insert(info, self._free_start(rows, sighting.birth))

    def _insert(self, info: JobInfo, birth: int | None = None) -> int:
        start = info.start
        if start is None:
            rows = self._rows(info.cluster, info.job_id)
            start = self._free_start(rows, birth or info.submit or self._now)
        else:
            start = self._free_start(self._rows(info.cluster, info.job_id), start)
        values = _columns(info) | {
            "cluster": info.cluster,
            "job_id": info.job_id,
            "start": start,
            "provisional": info.start is None,
            "updated": self._now,
        }
        self._transaction.execute(statements.INSERT_RUN, values)
        found = self._rows(info.cluster, info.job_id)
        return next(row.id for row in found if row.start == start)

    def _update(self, row: RunRow) -> None:
        values = _columns(row.info) | {
            "id": row.id,
            "start": row.start,
            "provisional": row.provisional,
            "updated": self._now,
        }
        self._transaction.execute(statements.UPDATE_RUN, values)

    @staticmethod
    def _free_start(rows: list[RunRow], start: int, own: RunRow | None = None) -> int:
        """The start, or the next nanosecond that no other run of the job has as its key."""
        taken = {row.start for row in rows if own is None or row.id != own.id}
        while start in taken:
            start += 1
        return start

    def _rows(self, cluster: str, job_id: int) -> list[RunRow]:
        job = {"cluster": cluster, "job_id": job_id}
        found = self._transaction.execute(statements.RUNS_OF_JOB, job).fetchall()
        return [_row(cluster, job_id, *values) for values in found]


def _interval(row: RunRow) -> tuple[object, ...]:
    """What decides which sightings belong to a run."""
    return row.start, row.provisional, row.info.end, row.info.sluid, row.info.restart_count


def of_node(rows: list[Any]) -> tuple[int | None, int | None, int | None]:
    """One node's figures from its sightings: CPU times add up, peaks do not."""
    peaks = [[row[place] for row in rows if row[place] is not None] for place in (1, 2)]
    return total([row[0] for row in rows]), max(peaks[0], default=None), max(peaks[1], default=None)


def total(values: list[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
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
    booked = None if provisional else start
    return RunRow(id, start, bool(provisional), info_from_columns(cluster, job_id, booked, columns))


def _columns(info: JobInfo) -> dict[str, Any]:
    values = {name: getattr(info, name) for name in statements.INFO_NAMES}
    for name in ("nodes", "tres"):
        if values[name] is not None:
            values[name] = _encode(values[name])
    return values


def _storable(info: JobInfo) -> JobInfo:
    """Texts that a database takes: PostgreSQL has no NUL, neither has halves of characters."""
    changes = {}
    for name in JobInfo.__struct_fields__:
        value = getattr(info, name)
        if isinstance(value, str) and ("\x00" in value or not value.isascii()):
            text = value.encode("utf-8", "backslashreplace").decode()
            changes[name] = text.replace("\x00", "\\x00")
    return msgspec.structs.replace(info, **changes)
