"""Retention and compaction of the time series of nodes, which have days instead of runs.

Ages count from the end of the day. A day is downsampled with the series of runs that ended then,
and removed with them or with the runs themselves, whichever is earlier. The archive has no series
of nodes, so they do not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from jobsight.config.settings import RetentionSettings
from jobsight.store.database import Database, Transaction
from jobsight.store.maintenance.pruned import Pruned
from jobsight.store.series.blocks import downsample_chunks
from jobsight.store.series.codec import ChunkError
from jobsight.store.sql.load import load_statements
from jobsight.store.write.node_days import DAY, complete_day

#: Days of nodes that are read in one query, and removed in one transaction.
BATCH_SIZE: Final = 200

_SQL: Final = load_statements("node_days")


class _Class(NamedTuple):
    """Days of nodes from ``since`` on and before ``until``, and whether they are removed."""

    name: str
    since: int
    until: int
    removed: bool


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
            values = {"since": each.since, "until": each.until, "all": each.removed}
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
        for _ in complete_past_days(self._database, self._now, self._pause):
            pass
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

    def _pages(self, each: _Class) -> Iterator[list[Any]]:
        values = {"day": each.since, "after": -1, "until": each.until, "all": each.removed}
        while True:
            with self._database.query() as transaction:
                rows = transaction.execute(
                    _SQL["due_node_days"], values | {"limit": BATCH_SIZE}
                ).fetchall()
            if not rows:
                return
            yield rows
            values |= {"day": rows[-1][3], "after": rows[-1][0]}

    def _remove(self, rows: list[Any], result: Pruned) -> None:
        keys = [(row[0],) for row in rows]
        with self._database.write() as transaction:
            _lock(transaction, rows)
            _count(transaction, keys, result)
            transaction.execute_rows(_SQL["delete_chunks"], keys)
            transaction.execute_rows(_SQL["delete_node_day"], keys)
        result.runs += len(keys)

    def _downsample(self, rows: list[Any], result: Pruned) -> None:
        for row in rows:
            id = row[0]
            with self._database.query() as transaction:
                chunks = transaction.execute(_SQL["chunks_of_day"], {"id": id}).fetchall()
            try:
                # Before the write lock is acquired.
                downsampled = downsample_chunks([data for _, data in chunks], self._resolution)
            except ChunkError:
                result.damaged += 1
                continue
            with self._database.write() as transaction:
                _lock(transaction, [row])
                stored = transaction.execute(_SQL["chunk_ids"], {"id": id}).fetchall()
                if [own for (own,) in stored] != [own for own, _ in chunks]:
                    # A part arrived meanwhile; the next retention run downsamples it, too.
                    continue
                if downsampled:
                    _count(transaction, [(id,)], result)
                    transaction.execute(_SQL["delete_chunks"], {"id": id})
                    parts = [{"id": id} | part._asdict() for part in downsampled]
                    transaction.execute_many(_SQL["insert_downsampled"], parts)
                    result.bytes_left += sum(len(part.data) for part in downsampled)
                transaction.execute(_SQL["mark_downsampled"], {"id": id})
            result.runs += 1


def complete_past_days(
    database: Database, now: int, pause: Callable[[float], bool] = lambda worked: False
) -> Iterator[tuple[int, Pruned]]:
    """Join the chunks of days that are over and whose nodes sent nothing since; yields the bytes of
    each day before and after."""
    after = -1
    while True:
        # An hour for what waits in a spool.
        values = {"after": after, "before": (now - DAY // 24) // DAY, "limit": BATCH_SIZE}
        with database.query() as transaction:
            rows = transaction.execute(_SQL["incomplete_node_days"], values).fetchall()
        for row in rows:
            after = row[0]
            began = time.monotonic()
            result = Pruned(runs=1)
            try:
                with database.write() as transaction:
                    _lock(transaction, [row])
                    _count(transaction, [(after,)], result)
                    complete_day(transaction, after)
                    left = Pruned()
                    _count(transaction, [(after,)], left)
                    result.bytes_left = left.bytes
            except ChunkError:
                result.damaged += 1
            yield after, result
            if pause(time.monotonic() - began):
                return
        if len(rows) < BATCH_SIZE:
            return


def _lock(transaction: Transaction, rows: list[Any]) -> None:
    """The lock of the writers of these days, by cluster and node."""
    transaction.lock("agent", {f"{cluster} {node}" for _, cluster, node, *_ in rows})


def _count(transaction: Transaction, keys: list[tuple[int]], result: Pruned) -> None:
    for count, size in transaction.look_up(_SQL["size_of_chunks"], keys):
        result.rows += count
        result.bytes += int(size)
