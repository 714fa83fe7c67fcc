"""The time series of nodes after they were stored: days that are over, retention, compaction.

A node has days instead of runs. :func:`complete_days` joins the chunks of those that are over, in
the background of a server (:func:`node_days_worker`), by retention and by compaction.

Ages count from the end of the day. A day is downsampled with the series of runs that ended then,
and removed with them or with the runs themselves, whichever is earlier. The archive has no series
of nodes, so they do not wait for it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from typing import Any, Final, NamedTuple

from jobsight.config.settings import RetentionSettings
from jobsight.errors import StoreError
from jobsight.store.checkpoints import (
    is_at_work,
    list_checkpoints,
    remove_checkpoint,
    set_checkpoint,
)
from jobsight.store.database import Database, Transaction
from jobsight.store.dead_letters import (
    INTERRUPTED,
    MAX_TRIES,
    NODE_DAY,
    RETRY_DELAY,
    due_keys,
    mark,
    reason_of,
    resolve,
    set_reason,
)
from jobsight.store.maintenance.pruned import Pruned
from jobsight.store.series.blocks import (
    COMPLETE,
    chunk_row,
    downsample_chunks,
    join_in_groups,
)
from jobsight.store.series.codec import ChunkError
from jobsight.store.series.cpu_use import cpu_use
from jobsight.store.sql.load import load_statements
from jobsight.store.store import Store
from jobsight.store.write.bounds import MAX_CPUS
from jobsight.store.write.node_days import DAY, NODE_CHUNKS
from jobsight.util.workers import PeriodicWorker

logger = logging.getLogger(__name__)

#: Seconds from the start of a server to the first check for days that are over, and between checks.
FIRST_CHECK, CHECK_INTERVAL = 45.0, 600.0
#: The pause after each day is as long as it took, up to these seconds.
MAX_PAUSE: Final = 1.0
#: Days of nodes that are read in one query, and removed in one transaction.
BATCH_SIZE: Final = 200
#: Days that are marked as in progress together.
GROUP_SIZE: Final = 50
#: Values of one chunk of a day: a sample of every metric every second makes a few.
MAX_BLOCK_VALUES: Final = 2**21

#: Followed by host name and PID of the process; its text has the ids of the days.
_IN_PROGRESS: Final = "node days in progress: "
#: Nanoseconds of all CPUs of the largest machine in a day.
_MOST_CPU_TIME: Final = MAX_CPUS * DAY
#: Rollups have microseconds.
_MICROSECOND: Final = 1000
_EPOCH: Final = date(1970, 1, 1).toordinal()

_SQL: Final = load_statements("node_days")
#: The threads of a process would take each other's work in progress for that of a killed process.
_one_at_a_time = threading.Lock()


class _Day(NamedTuple):
    """The key of a row of ``node_days``."""

    id: int
    cluster: str
    node: str
    day: int


class _Class(NamedTuple):
    """Days of nodes from ``since`` on and before ``until``, and whether they are removed."""

    name: str
    since: int
    until: int
    removed: bool

    def values(self) -> dict[str, object]:
        """Those of a statement. A day that failed is tried again as other dead letters are."""
        return {
            "until": self.until,
            "all": self.removed,
            "tries": MAX_TRIES,
            "tried": time.time_ns() - RETRY_DELAY,
            "interrupted": INTERRUPTED,
        }


def _classes(settings: RetentionSettings, now: int) -> list[_Class]:
    ages = [days for days in (settings.downsampled, settings.runs) if days]
    removed = _day_before(now, min(ages)) if ages else 0
    downsampled = _day_before(now, settings.series) if settings.series else 0
    classes = [
        _Class("node days", 0, removed, removed=True),
        _Class("node days downsampled", removed, downsampled, removed=False),
    ]
    return [each for each in classes if each.since < each.until]


def _day_before(now: int, age: float) -> int:
    """The first day that is not over for so many days."""
    return max((now - round(age * DAY)) // DAY, 0)


def preview_node_days(
    database: Database, settings: RetentionSettings, now: int
) -> dict[str, Pruned]:
    """How much :class:`NodeDayPruner` would remove; nothing is changed."""
    results = {}
    with database.query() as transaction:
        for each in _classes(settings, now):
            values = each.values() | {"since": each.since}
            (days,) = transaction.execute(_SQL["count_due_node_days"], values).fetchone()
            if days:
                size = transaction.execute(_SQL["size_of_due_chunks"], values).fetchone()
                results[each.name] = Pruned(runs=days, rows=size[0], bytes=int(size[1]))
    return results


class NodeDayPruner:
    """Completes, downsamples and removes days of nodes, in short transactions."""

    def __init__(
        self,
        database: Database,
        settings: RetentionSettings,
        now: int,
        pause: Callable[[float], bool],
    ) -> None:
        """``pause`` is called with the seconds of each transaction; a true result ends the work."""
        self._database = database
        self._classes = _classes(settings, now)
        self._resolution = round(settings.resolution * 1e9)
        self._now = now
        self._pause = pause

    def run(self) -> dict[str, Pruned]:
        """What was removed, of the classes of which something was due."""
        complete_days(self._database, self._now, self._pause)
        results = {}
        for each in self._classes:
            result = Pruned()
            for rows in self._pages(each):
                began = time.monotonic()
                work = self._remove if each.removed else self._downsample
                work(rows, result)
                if self._pause(time.monotonic() - began):
                    break
            if result.runs or result.damaged:
                results[each.name] = result
        return results

    def _pages(self, each: _Class) -> Iterator[list[_Day]]:
        values = each.values() | {"day": each.since, "after": -1}
        while True:
            with self._database.query() as transaction:
                rows = transaction.execute(
                    _SQL["due_node_days"], values | {"limit": BATCH_SIZE}
                ).fetchall()
            if not rows:
                return
            days = [_Day(*row) for row in rows]
            yield days
            values |= {"day": days[-1].day, "after": days[-1].id}

    def _remove(self, days: list[_Day], result: Pruned) -> None:
        keys = [(day.id,) for day in days]
        with self._database.write() as transaction:
            _lock(transaction, days)
            _count(transaction, keys, result)
            for statement in ("delete_chunks", "delete_dead_letters", "delete_node_day"):
                transaction.execute_rows(_SQL[statement], keys)
        result.runs += len(keys)

    def _downsample(self, days: list[_Day], result: Pruned) -> None:
        for day in days:
            reason = _try(self._database, day, lambda day: self._downsample_day(day, result))
            if reason:
                result.damaged += 1
                set_aside(self._database, day, reason)

    def _downsample_day(self, day: _Day, result: Pruned) -> None:
        with self._database.query() as transaction:
            chunks = transaction.execute(_SQL["chunks_of_day"], {"id": day.id}).fetchall()
        # Before the write lock is acquired.
        downsampled = downsample_chunks([data for _, data in chunks], self._resolution)
        with self._database.write() as transaction:
            _lock(transaction, [day])
            if not _are_chunks(transaction, day, chunks):
                # A part arrived meanwhile; the next retention run downsamples it, too.
                return
            if downsampled:
                _count(transaction, [(day.id,)], result)
                transaction.execute(_SQL["delete_chunks"], {"id": day.id})
                parts = [{"id": day.id} | part._asdict() for part in downsampled]
                transaction.execute_many(_SQL["insert_downsampled"], parts)
                result.bytes_left += sum(len(part.data) for part in downsampled)
            transaction.execute(_SQL["mark_downsampled"], {"id": day.id})
            resolve(transaction, NODE_DAY, str(day.id))
        result.runs += 1


class JoinedDay(NamedTuple):
    """The chunks that replace all of a day, and its sums in microseconds."""

    chunks: list[dict[str, object]]
    cpu_time: int | None
    core_time: int | None


def join_day(id: int, chunks: Iterable[bytes]) -> JoinedDay:
    """Join the chunks of a day, given in the order of their arrival."""
    joined = []
    busy: int | None = None
    idle: int | None = None
    # One after the other: blocks of many metrics are larger than their chunks.
    for block in join_in_groups(chunks, MAX_BLOCK_VALUES):
        joined.append(chunk_row(id, COMPLETE, block))
        worked, rested = cpu_use(block)
        busy, idle = _total(busy, worked), _total(idle, rested)
    if busy is None or max(busy, idle or 0) > _MOST_CPU_TIME:
        return JoinedDay(joined, None, None)
    whole = busy + (idle or 0)
    return JoinedDay(joined, round(busy / _MICROSECOND), round(whole / _MICROSECOND))


def _total(one: int | None, other: int | None) -> int | None:
    return one if other is None else (one or 0) + other


class _Completion:
    """Completes days that are over: reads and joins them outside of transactions, and stores each
    in a short one.

    As in :mod:`jobsight.store.rollups.rollups`, no day stops the others. One that fails becomes a
    dead letter. A group is marked in the store before the work and unmarked after it; what a
    process that was killed leaves is done day by day, each a dead letter until it is done.
    """

    def __init__(self, database: Database, pause: Callable[[float], bool]) -> None:
        self._database = database
        self._pause = pause
        self._stopped = False
        self.result = Pruned()

    def run(self, before: int, *, late: bool) -> None:
        self._do_alone([int(key) for key in due_keys(self._database, NODE_DAY, BATCH_SIZE)])
        self._do_interrupted()
        after = "", "", -1
        while not self._stopped:
            values = dict(zip(("cluster", "node", "day"), after, strict=True))
            values |= {"before": before, "late": late, "limit": GROUP_SIZE}
            with self._database.query() as transaction:
                rows = transaction.execute(_SQL["incomplete_node_days"], values).fetchall()
            if not rows:
                return
            days = [_Day(*row) for row in rows]
            self._do_group(days)
            after = days[-1][1:]

    def _do_group(self, days: Sequence[_Day]) -> None:
        mark = f"{_IN_PROGRESS}{os.uname().nodename} {os.getpid()}"
        with self._database.write() as transaction:
            ids = " ".join(str(day.id) for day in days)
            set_checkpoint(transaction, mark, len(days), ids)
        try:
            for day in days:
                if not self._stopped:
                    reason = self._try(day)
                    if reason:
                        set_aside(self._database, day, reason)
        finally:
            # Not reached by a process that is killed.
            with self._database.write() as transaction:
                remove_checkpoint(transaction, mark)

    def _do_interrupted(self) -> None:
        with self._database.query() as transaction:
            marks = list_checkpoints(transaction, _IN_PROGRESS)
        for name, checkpoint in marks.items():
            host, _, pid = name.rpartition(" ")
            if is_at_work(host, int(pid)):
                continue
            ids = (checkpoint.text or "").split()
            with self._database.query() as transaction:
                rows = transaction.look_up(_SQL["dead_letters_of_days"], [(id,) for id in ids])
                # Only an operator has those tried again that ended the process when it did them
                # alone.
                aside = {key for (key,) in rows}
            self._do_alone([int(id) for id in ids if id not in aside])
            if self._stopped:
                # The mark stays for the days that are left.
                return
            with self._database.write() as transaction:
                remove_checkpoint(transaction, f"{_IN_PROGRESS}{name}")

    def _do_alone(self, ids: Sequence[int]) -> None:
        """Complete days that may end the process: each is a dead letter until it is done."""
        with self._database.query() as transaction:
            rows = transaction.look_up(_SQL["node_days_by_id"], [(id,) for id in ids])
            days = [_Day(*row) for row in rows]
        for day in days:
            if self._stopped:
                return
            with self._database.write() as transaction:
                mark(transaction, NODE_DAY, str(day.id), day.cluster)
            reason = ""
            try:
                reason = self._try(day)
            finally:
                # Also if the store failed, or the process is to end: not the fault of the day.
                with self._database.write() as transaction:
                    if reason:
                        set_reason(transaction, NODE_DAY, str(day.id), reason)
                    else:
                        resolve(transaction, NODE_DAY, str(day.id))

    def _try(self, day: _Day) -> str:
        """Complete a day; returns why that failed."""
        began = time.monotonic()
        reason = _try(self._database, day, self._complete)
        self.result.damaged += bool(reason)
        self._stopped |= bool(self._pause(time.monotonic() - began))
        return reason

    def _complete(self, day: _Day) -> None:
        with self._database.query() as transaction:
            chunks = transaction.execute(_SQL["chunks_of_day"], {"id": day.id}).fetchall()
        joined = join_day(day.id, (data for _, data in chunks))
        with self._database.write() as transaction:
            _lock(transaction, [day])
            if not _are_chunks(transaction, day, chunks):
                # A part arrived meanwhile; the next round completes the day.
                return
            _count(transaction, [(day.id,)], self.result)
            transaction.execute(_SQL["delete_chunks"], {"id": day.id})
            transaction.execute_many(NODE_CHUNKS.insert, joined.chunks)
            sums = {"cpu_time": joined.cpu_time, "core_time": joined.core_time}
            transaction.execute(_SQL["complete_node_day"], sums | {"id": day.id})
            resolve(transaction, NODE_DAY, str(day.id))
        self.result.runs += 1
        self.result.bytes_left += sum(len(_data(chunk)) for chunk in joined.chunks)


def complete_days(
    database: Database,
    now: int,
    pause: Callable[[float], bool] = lambda worked: False,
    *,
    late: bool = True,
) -> Pruned:
    """Join the chunks of each day that is over, and compute its sums for the cluster.

    ``late`` includes days that were complete before a late part came: their whole series are
    written again. ``pause`` is called with the seconds of each day; a true result ends the work.
    """
    completion = _Completion(database, pause)
    with _one_at_a_time:
        # An hour for what waits in a spool.
        completion.run((now - DAY // 24) // DAY, late=late)
    return completion.result


def node_days_worker(store: Store, first_delay: float = FIRST_CHECK) -> PeriodicWorker:
    """Completes days in a background thread. What came late waits for the next retention run, or
    for compaction."""

    def work(stopped: threading.Event) -> None:
        def pause(worked: float) -> bool:
            return stopped.wait(min(worked, MAX_PAUSE))

        complete_days(store.database, time.time_ns(), pause, late=False)

    return PeriodicWorker(
        "node-days",
        work,
        CHECK_INTERVAL,
        logger=logger,
        failure="the time series of nodes were not joined",
        # After an upgrade there may be many.
        time_limit=86400.0,
        first_delay=first_delay,
    )


def set_aside(database: Database, day: _Day, reason: str) -> None:
    """Make a day that failed a dead letter."""
    with database.write() as transaction:
        mark(transaction, NODE_DAY, str(day.id), day.cluster, reason)
    logger.warning("cluster %s: %s", day.cluster, reason)


def _try(database: Database, day: _Day, work: Callable[[_Day], None]) -> str:
    """Do some work for a day; returns why that failed. An error of the store itself is raised."""
    try:
        work(day)
    except Exception as error:
        if (
            isinstance(error, StoreError)
            and not isinstance(error, ChunkError)
            and not database.rejected_values(error)
        ):
            raise
        logger.debug("day %d of a node failed", day.id, exc_info=True)
        of_day = date.fromordinal(_EPOCH + day.day)
        return f"day {of_day} of node {day.node}: {reason_of(error)}"
    return ""


def _are_chunks(transaction: Transaction, day: _Day, chunks: Sequence[Any]) -> bool:
    """Whether these are still the chunks of a day."""
    stored = transaction.execute(_SQL["chunk_ids"], {"id": day.id}).fetchall()
    return [own for (own,) in stored] == [own for own, _ in chunks]


def _data(chunk: dict[str, object]) -> bytes:
    data = chunk["data"]
    assert isinstance(data, bytes)
    return data


def _lock(transaction: Transaction, days: Sequence[_Day]) -> None:
    """The lock of the writers of these days, by cluster and node."""
    transaction.lock("agent", {f"{day.cluster} {day.node}" for day in days})


def _count(transaction: Transaction, keys: list[tuple[int]], result: Pruned) -> None:
    for count, size in transaction.look_up(_SQL["size_of_chunks"], keys):
        result.rows += count
        result.bytes += int(size)
