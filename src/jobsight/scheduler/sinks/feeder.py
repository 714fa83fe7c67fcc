"""Feeds sinks from the store.

The store is the queue: a checkpoint holds how far each sink has been fed, so a sink that was
unreachable continues there, nothing is held in memory for it, and no sink delays another. Read
:func:`feed` first; a :class:`Feeder` repeats it in a thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from jobsight.config.settings import SinksSettings
from jobsight.errors import JobsightError, StoreError
from jobsight.model import SECOND
from jobsight.scheduler.records import JobDetails, JobRecord, NodeInfo
from jobsight.scheduler.sinks.base import Figures, Sink, SinkJob
from jobsight.store.checkpoints import Checkpoint, list_checkpoints, set_checkpoint
from jobsight.store.findings.read import findings_of_runs
from jobsight.store.findings.rows import FindingRow
from jobsight.store.snapshot import read_snapshot, snapshot_clusters, unpack
from jobsight.store.store import Store
from jobsight.store.write.scheduler import ReportedRun, changed_runs, running_runs
from jobsight.util.backoff import Backoff
from jobsight.util.workers import INTERNAL_ERROR, PeriodicWorker

logger = logging.getLogger(__name__)

#: Runs in memory at a time.
_BATCH_SIZE = 1000
#: Runs are sent again for this time: agents deliver the last figures after the scheduler's end.
_OVERLAP = 3600 * SECOND
#: Seconds between two attempts while a sink fails.
_FIRST_DELAY, _MAX_DELAY = 5.0, 300.0
#: Prefix of the checkpoints. The text of a checkpoint is why the last attempt failed.
_PREFIX = "sink:"


def feed(store: Store, sink: Sink) -> int:
    """Send a sink what changed since it was last fed; returns how many documents it wrote."""
    database = store.database
    fed_until = _read_checkpoint(store, sink.name).value
    written, latest = 0, fed_until
    sink.prepare()
    for cluster in snapshot_clusters(database):
        pending = read_snapshot(database, cluster, "pending", JobRecord)
        written += sink.pending(cluster, [SinkJob(record, Figures()) for record in pending])
        written += sink.nodes(cluster, read_snapshot(database, cluster, "node", NodeInfo))
    for runs in _changed_batches(store, max(fed_until - _OVERLAP, 0)):
        written += sink.jobs(_sink_jobs(store, runs))
        latest = max(latest, runs[-1].changed)
    for runs in _running_batches(store):
        written += sink.jobs(_sink_jobs(store, runs))
    if latest != fed_until:
        set_sink_checkpoint(store, sink.name, latest, "")
    return written


def read_reasons(store: Store) -> dict[str, str]:
    """Every sink that was ever fed, and why the last attempt failed; empty if it succeeded."""
    with store.database.query() as transaction:
        checkpoints = list_checkpoints(transaction, _PREFIX)
    return {name: checkpoint.text or "" for name, checkpoint in checkpoints.items()}


def set_sink_checkpoint(store: Store, sink: str, value: int, reason: str) -> None:
    with store.database.write() as transaction:
        set_checkpoint(transaction, f"{_PREFIX}{sink}", value, reason)


def _read_checkpoint(store: Store, sink: str) -> Checkpoint:
    with store.database.query() as transaction:
        return list_checkpoints(transaction, _PREFIX).get(sink, Checkpoint(0))


def _changed_batches(store: Store, since: int) -> Iterator[list[ReportedRun]]:
    """Runs that the scheduler reported as changed, the oldest change first."""
    after = since, 0
    while True:
        with store.database.query() as transaction:
            runs = changed_runs(transaction, after, _BATCH_SIZE)
        if not runs:
            return
        after = runs[-1].changed, runs[-1].run_id
        yield runs


def _running_batches(store: Store) -> Iterator[list[ReportedRun]]:
    last = 0
    while True:
        with store.database.query() as transaction:
            runs = running_runs(transaction, last, _BATCH_SIZE)
        if not runs:
            return
        last = runs[-1].run_id
        yield runs


def _sink_jobs(store: Store, runs: Sequence[ReportedRun]) -> list[SinkJob]:
    found = findings_of_runs(store.database, [run.run_id for run in runs])
    return [_sink_job(run, found.get(run.run_id, [])) for run in runs]


def _sink_job(run: ReportedRun, findings: Sequence[FindingRow]) -> SinkJob:
    details = unpack(run.details, JobDetails)
    figures = Figures(
        cpu_time=run.cpu_time,
        memory_used_peak=run.memory_used_peak,
        memory_peak=run.memory_peak,
        gpus=run.gpus,
    )
    record = JobRecord(info=run.info, **msgspec.structs.asdict(details))
    return SinkJob(record, figures, [row.document() for row in findings])


class Feeder:
    """Feeds one sink, repeatedly in a thread between :meth:`start` and :meth:`stop`."""

    def __init__(self, store: Store, sink: Sink, interval: float) -> None:
        #: Documents written since the start.
        self.written = 0
        self._store = store
        self._sink = sink
        self._reason: str | None = None
        self._worker = PeriodicWorker(
            f"sink-{sink.name}",
            self._feed,
            interval,
            logger=logger,
            failure=f"the sink {sink.name} cannot be fed",
            backoff=Backoff(_FIRST_DELAY, _MAX_DELAY),
        )

    def start(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        self._worker.stop()
        self._sink.close()

    def feed_once(self) -> bool:
        """Feed the sink; False if it failed, which is logged."""
        return self._worker.run_once()

    def _feed(self, stopped: threading.Event) -> None:
        try:
            self.written += feed(self._store, self._sink)
        except Exception as error:
            self._store_reason(str(error) if isinstance(error, JobsightError) else INTERNAL_ERROR)
            raise
        self._store_reason("")

    def _store_reason(self, reason: str) -> None:
        """Store why the sink failed, for the health of all servers."""
        if reason == self._reason:
            return
        self._reason = reason
        try:
            value = _read_checkpoint(self._store, self._sink.name).value
            set_sink_checkpoint(self._store, self._sink.name, value, reason)
        except StoreError as error:
            logger.warning("%s", error)


def open_sinks(settings: SinksSettings) -> list[Sink]:
    """The sinks that have an address; the libraries of the others are not imported."""
    sinks: list[Sink] = []
    if settings.mongodb.url:
        from jobsight.scheduler.sinks.mongodb import MongoSink

        sinks.append(MongoSink(settings.mongodb.url, settings.mongodb.database))
    if settings.opensearch.url:
        from jobsight.scheduler.sinks.opensearch import OpenSearchSink

        opensearch = settings.opensearch
        sinks.append(
            OpenSearchSink(
                opensearch.url or "",
                prefix=opensearch.prefix,
                user=opensearch.user,
                password_file=opensearch.password_file,
                ca_file=opensearch.ca_file,
            )
        )
    return sinks


@contextmanager
def feeding(store: Store, settings: SinksSettings) -> Iterator[Sequence[Feeder]]:
    """Feed the sinks in threads during the block."""
    feeders = [Feeder(store, sink, settings.interval) for sink in open_sinks(settings)]
    for feeder in feeders:
        feeder.start()
    try:
        yield feeders
    finally:
        for feeder in feeders:
            feeder.stop()
