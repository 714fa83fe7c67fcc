"""What a sink has not been given yet, read from the store.

The store is the queue: a sink that was away goes on from its mark, nothing is held in memory for
it, and no sink holds up another one.

Feeds each sink in a thread of its own, again and again; one that is away is tried again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, select, tuple_

from jobsight.config.settings import SinksSettings
from jobsight.errors import JobsightError, StoreError
from jobsight.model import SECOND
from jobsight.scheduler.records import JobRecord, NodeInfo
from jobsight.scheduler.sinks.base import Figures, Sink, SinkJob
from jobsight.scheduler.snapshot import read_snapshot, snapshot_clusters, unpack
from jobsight.store.schema.tables import checkpoints, run_details, runs
from jobsight.store.store import Store

#: Runs in memory, and in one request to a service.
AT_ONCE = 1000
#: The agents' last figures of a run come some time after the scheduler's end of it.
OVERLAP = 3600 * SECOND
_PREFIX = "sink:"

_KEEP_MARK = """
    INSERT INTO checkpoints (name, value, text) VALUES (:name, :value, :text)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value, text = excluded.text
"""


def feed(store: Store, sink: Sink) -> int:
    """Give a sink all that is new since it was last fed; how many documents it wrote."""
    mark = read_mark(store, sink.name)
    written, latest = 0, mark
    sink.prepare()
    for cluster in snapshot_clusters(store):
        waiting = read_snapshot(store, cluster, "waiting", JobRecord)
        written += sink.waiting(cluster, [SinkJob(record, Figures()) for record in waiting])
        written += sink.nodes(cluster, read_snapshot(store, cluster, "node", NodeInfo))
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
    query = select(checkpoints.c.value).where(checkpoints.c.name == f"{_PREFIX}{sink}")
    with store.database.read() as connection:
        return connection.scalar(query) or 0


def keep_mark(store: Store, sink: str, value: int, reason: str) -> None:
    """Remember how far a sink has been fed, and why not further."""
    row = {"name": f"{_PREFIX}{sink}", "value": value, "text": reason}
    with store.database.write() as transaction:
        transaction.execute(_KEEP_MARK, row)


def read_reasons(store: Store) -> dict[str, str]:
    """Every sink that was ever fed, and why it could not be the last time, if it could not."""
    query = select(checkpoints.c.name, checkpoints.c.text).where(
        checkpoints.c.name.startswith(_PREFIX)
    )
    with store.database.read() as connection:
        found = connection.execute(query.order_by(checkpoints.c.name)).all()
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


logger = logging.getLogger("jobsight.sinks")

#: Seconds between two attempts to reach a sink that is away: doubled up to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
#: Seconds that a server waits at its end for a sink that is being fed.
_LAST_WAIT = 5.0


class SinkState(msgspec.Struct):
    """How a sink fares."""

    name: str
    #: When it was last fed whole.
    succeeded: float | None = None
    #: Why it could not be fed; empty where it could.
    reason: str = ""
    #: Documents written since the start.
    written: int = 0
    #: Documents that it refused for good.
    refused: int = 0


class Feeder:
    """One sink and its thread."""

    def __init__(
        self, store: Store, sink: Sink, every: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.state = SinkState(sink.name)
        self._store = store
        self._sink = sink
        self._every = every
        self._clock = clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"jobsight-{sink.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(_LAST_WAIT)
        self._sink.close()

    def feed_once(self) -> bool:
        """Feed the sink; False, with the reason in the state, where it did not take all."""
        state = self.state
        try:
            state.written += feed(self._store, self._sink)
        except JobsightError as error:
            if state.reason != str(error):
                logger.warning("%s", error)
                self._say(str(error))
            state.reason = str(error)
            return False
        if state.reason or state.succeeded is None:
            self._say("")
        if state.reason:
            logger.warning("%s takes the jobs again", self._sink.name)
        state.reason, state.succeeded = "", self._clock()
        state.refused = len(getattr(self._sink, "refused", ()))
        return True

    def _say(self, reason: str) -> None:
        """Leave word in the store, where the health of all servers is read."""
        name = self._sink.name
        try:
            keep_mark(self._store, name, read_mark(self._store, name), reason)
        except StoreError as error:
            logger.warning("%s", error)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                fed = self.feed_once()
            except Exception:
                # A fault of ours must not end the feeding, nor the server.
                logger.exception("feeding %s ended by a fault", self._sink.name)
                self.state.reason = "a fault of jobsight, which its log shows"
                fed = False
            pause = _FIRST_PAUSE if fed else min(pause * 2, _LONGEST_PAUSE)
            self._stopped.wait(self._every if fed else pause)


def open_sinks(settings: SinksSettings) -> list[Sink]:
    """The sinks that have an address; the libraries of the others are not needed."""
    found: list[Sink] = []
    if settings.mongodb.url:
        from jobsight.scheduler.sinks.mongodb import MongoSink

        found.append(MongoSink(settings.mongodb.url, settings.mongodb.database))
    if settings.opensearch.url:
        from jobsight.scheduler.sinks.opensearch import OpenSearchSink

        opensearch = settings.opensearch
        found.append(
            OpenSearchSink(
                opensearch.url or "",
                prefix=opensearch.prefix,
                user=opensearch.user,
                password_file=opensearch.password_file,
                ca_file=opensearch.ca_file,
            )
        )
    return found


@contextmanager
def feeding(store: Store, settings: SinksSettings) -> Iterator[Sequence[Feeder]]:
    """Feed the sinks beside what the block does."""
    outlets = [Feeder(store, sink, settings.interval) for sink in open_sinks(settings)]
    for outlet in outlets:
        outlet.start()
    try:
        yield outlets
    finally:
        for outlet in outlets:
            outlet.stop()
