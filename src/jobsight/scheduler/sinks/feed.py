"""What a sink has not been given yet, read from the store.

The store is the queue: a sink that was away goes on from its mark, nothing is held in memory for
it, and no sink holds up another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Select, select, tuple_

from jobsight.model import SECOND
from jobsight.scheduler.mirror import mirrored_clusters, read_mirror, unpack
from jobsight.scheduler.records import JobRecord, NodeInfo
from jobsight.scheduler.sinks.base import Figures, Sink, SinkJob
from jobsight.store import Store
from jobsight.store.derived import marks, run_details
from jobsight.store.tables import runs

#: Runs in memory, and in one request to a service.
AT_ONCE = 1000
#: The agents' last figures of a run come some time after the scheduler's end of it.
OVERLAP = 3600 * SECOND
_PREFIX = "sink:"

_KEEP_MARK = """
    INSERT INTO marks (name, value, text) VALUES (:name, :value, :text)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value, text = excluded.text
"""


def feed(store: Store, sink: Sink) -> int:
    """Give a sink all that is new since it was last fed; how many documents it wrote."""
    mark = read_mark(store, sink.name)
    written, latest = 0, mark
    sink.prepare()
    for cluster in mirrored_clusters(store):
        waiting = read_mirror(store, cluster, "waiting", JobRecord)
        written += sink.waiting(cluster, [SinkJob(record, Figures()) for record in waiting])
        written += sink.nodes(cluster, read_mirror(store, cluster, "node", NodeInfo))
    for changed, group in _changed_runs(store, max(mark - OVERLAP, 0)):
        written += sink.jobs(group)
        latest = max(latest, changed)
    for group in _open_runs(store):
        written += sink.jobs(group)
    if latest != mark:
        keep_mark(store, sink.name, latest, "")
    return written


def read_mark(store: Store, sink: str) -> int:
    """How far a sink has been fed."""
    query = select(marks.c.value).where(marks.c.name == f"{_PREFIX}{sink}")
    with store.database.read() as connection:
        return connection.scalar(query) or 0


def keep_mark(store: Store, sink: str, value: int, reason: str) -> None:
    """Remember how far a sink has been fed, and why not further."""
    row = {"name": f"{_PREFIX}{sink}", "value": value, "text": reason}
    with store.database.write() as transaction:
        transaction.execute(_KEEP_MARK, row)


def read_reasons(store: Store) -> dict[str, str]:
    """Every sink that was ever fed, and why it could not be the last time, if it could not."""
    query = select(marks.c.name, marks.c.text).where(marks.c.name.startswith(_PREFIX))
    with store.database.read() as connection:
        found = connection.execute(query.order_by(marks.c.name)).all()
    return {name.removeprefix(_PREFIX): text or "" for name, text in found}


def _changed_runs(store: Store, since: int) -> Iterator[tuple[int, list[SinkJob]]]:
    """Runs of which the scheduler said something new, the oldest news first."""
    place = (since, 0)
    columns = run_details.c.changed, run_details.c.run_id
    while True:
        query = _runs().where(tuple_(*columns) > tuple_(*place)).order_by(*columns).limit(AT_ONCE)
        with store.database.read() as connection:
            found = connection.execute(query).all()
        if not found:
            return
        place = found[-1].changed, found[-1].run_id
        yield place[0], [_job(row) for row in found]


def _open_runs(store: Store) -> Iterator[list[SinkJob]]:
    """Runs that go on: the scheduler has nothing new of them, the agents have."""
    last = 0
    while True:
        with store.database.read() as connection:
            found = _some_open(connection, last)
        if not found:
            return
        last = found[-1].run_id
        yield [_job(row) for row in found]


def _some_open(connection: Connection, after: int) -> list[Any]:
    query = _runs().where(runs.c.end.is_(None), runs.c.id > after).order_by(runs.c.id)
    return list(connection.execute(query.limit(AT_ONCE)).all())


def _runs() -> Select[Any]:
    return select(
        run_details,
        runs.c.cpu_time,
        runs.c.memory_used_peak,
        runs.c.memory_peak,
    ).join(runs, runs.c.id == run_details.c.run_id)


def _job(row: Any) -> SinkJob:
    figures = Figures(
        cpu_time=row.cpu_time,
        memory_used_peak=row.memory_used_peak,
        memory_peak=row.memory_peak,
    )
    return SinkJob(unpack(row.data, JobRecord), figures)
