"""Retention: downsample and delete old data, in short transactions that do not block writers.

:func:`classes` translates the settings to classes of data with the runs that are due;
:class:`Pruner` processes them; :func:`retention_worker` runs it once a day in the background of
one of the servers of a store. Ages count from the end of a run; a run without a known end is
never touched. The time series of nodes have days instead of runs: :mod:`.node_days`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from jobsight.config.settings import RetentionSettings
from jobsight.errors import JobsightError, StoreError
from jobsight.model import SECOND
from jobsight.store import chains
from jobsight.store.accounts.accounts import SQL as ACCOUNTS_SQL
from jobsight.store.checkpoints import read_checkpoint
from jobsight.store.database import Database, Transaction
from jobsight.store.findings.works import remove_unused_works
from jobsight.store.findings.write import prune_findings
from jobsight.store.maintenance.dump import Progress, no_progress
from jobsight.store.maintenance.node_days import NodeDayPruner, preview_node_days
from jobsight.store.maintenance.pruned import Pruned
from jobsight.store.series.blocks import Downsampled, downsample_chunks
from jobsight.store.series.codec import ChunkError
from jobsight.store.sql.load import load_statements
from jobsight.store.store import Store
from jobsight.util.batching import batched
from jobsight.util.workers import INTERNAL_ERROR, PeriodicWorker

logger = logging.getLogger(__name__)

DAY = 86400 * SECOND
#: The bits of ``runs.pruned``: time series downsampled, time series deleted, executables deleted.
DOWNSAMPLED, SERIES, EXECUTABLES = 1, 2, 4
_ALL_STATES = range(8)
#: Before any run.
_DISTANT_PAST = -(2**62)

#: Seconds from the start of a server to the first check whether retention is due, and between
#: checks.
FIRST_CHECK, CHECK_INTERVAL = 60.0, 600.0

#: Runs that are read in one query.
BATCH_SIZE = 200
#: Nodes of runs in one transaction.
NODES_BATCH_SIZE = 128
#: The same for downsampling, which reads all chunks of the nodes.
DOWNSAMPLED_BATCH_SIZE = 32
PATHS_BATCH_SIZE = 500
#: The pause after each transaction is as long as it took, up to these seconds: writers of other
#: processes can only retry.
MAX_PAUSE = 1.0

#: Nanoseconds for which a revoked or expired token is still listed.
_LISTED_TOKEN: Final = 90 * DAY

_SQL: Final = load_statements("maintenance")
_DELETE_RUN: Final = (
    "delete_run_nodes",
    "delete_contribution",
    "delete_run_details",
    "delete_properties",
    "delete_dead_letters",
    "delete_run",
)


def retention_worker(
    store: Store, settings: RetentionSettings, first_delay: float = FIRST_CHECK
) -> PeriodicWorker:
    """Prunes once a day in a background thread; after a failure again on the next day."""
    return PeriodicWorker(
        "prune",
        lambda stopped: _prune_if_due(store.database, settings, stopped),
        CHECK_INTERVAL,
        logger=logger,
        failure="retention failed",
        # The first time it may delete years.
        time_limit=86400.0,
        first_delay=first_delay,
    )


def _prune_if_due(
    database: Database, settings: RetentionSettings, stopped: threading.Event
) -> None:
    if not claim(database, time.time_ns()):
        # A failure is in the health of all servers until the next try, not until the next check.
        reason = last_failure(database)
        if reason:
            raise JobsightError(reason)
        return
    logger.info("retention started")
    try:
        pruned = prune(database, settings, pause=stopped.wait)
    except Exception as error:
        reason = str(error) if isinstance(error, JobsightError) else INTERNAL_ERROR
        with contextlib.suppress(StoreError):
            _set_failure(database, reason)
        raise
    _set_failure(database, None)
    counts = [
        f"{name}: {part.runs} {'' if name.startswith('node days') else 'runs'}".rstrip()
        for name, part in pruned.items()
        if part.runs
    ]
    logger.info("retention finished: %s", ", ".join(counts) or "nothing due")


def claim(database: Database, now: int) -> bool:
    """Whether retention is due and this process is the one to run it."""
    with database.write() as transaction:
        transaction.execute(_SQL["insert_retention_checkpoint"])
        values = {"now": now, "before": now - DAY}
        return transaction.execute(_SQL["claim_retention"], values).rowcount == 1


def last_failure(database: Database) -> str:
    """Why retention failed when it was last due; empty if it did not."""
    with database.query() as transaction:
        checkpoint = read_checkpoint(transaction, "retention")
    return checkpoint.text or "" if checkpoint is not None else ""


def _set_failure(database: Database, reason: str | None) -> None:
    with database.write() as transaction:
        transaction.execute(_SQL["set_retention_failure"], {"reason": reason})


def prune(
    database: Database,
    settings: RetentionSettings,
    now: int | None = None,
    progress: Progress = no_progress,
    pause: Callable[[float], object] = time.sleep,
) -> dict[str, Pruned]:
    """Downsample and delete what the settings no longer keep; returns how much, by class.

    ``pause`` is called with some seconds after each transaction; a true result ends the work.
    """
    return Pruner(database, settings, time.time_ns() if now is None else now, progress, pause).run()


def preview(
    database: Database, settings: RetentionSettings, now: int | None = None
) -> dict[str, Pruned]:
    """How much :func:`prune` would remove now; nothing is changed."""
    results = {}
    for data_class in classes(settings, time.time_ns() if now is None else now):
        with database.query() as transaction:
            runs, waiting = _runs(transaction, data_class)
            of_nodes = f"run_nodes ON run_nodes.run_id = runs.id AND {data_class.where()}"
            series = f"FROM runs JOIN {of_nodes} JOIN chunks ON chunks.run_node_id = run_nodes.id"
            result = results[data_class.name] = Pruned(runs=runs, waiting=waiting)
            if data_class.name != "executables":
                result.bytes = _number(transaction, f"SELECT sum(length(chunks.data)) {series}")
                result.rows += _number(transaction, f"SELECT count(*) {series}")
            if data_class.name in ("executables", "runs"):
                kept = () if data_class.name == "executables" else ("gpus",)
                for table in ("executables", "steps", *kept):
                    joined = f"JOIN {table} ON {table}.run_node_id = run_nodes.id"
                    result.rows += _number(
                        transaction, f"SELECT count(*) FROM runs JOIN {of_nodes} {joined}"
                    )
    return results | preview_node_days(database, settings, time.time_ns() if now is None else now)


def _remove_gpus(transaction: Transaction, nodes: list[int]) -> int:
    """GPUs are few, and lists show their sums: they are kept as long as their run."""
    keys = _keys(nodes)
    count = sum(count for (count,) in transaction.look_up(_SQL["count_gpus"], keys))
    transaction.execute_rows(_SQL["delete_gpus"], keys)
    return int(count)


def remove_paths(database: Database, ids: Iterable[int]) -> int:
    """Remove those of the paths that no executable has; returns how many."""
    with database.write() as transaction:
        # A writer that has read the id of a path refers to it before its transaction ends.
        transaction.lock_out_writers()
        unused = list(transaction.look_up(_SQL["unused_among_paths"], _keys(ids)))
        transaction.execute_rows(_SQL["delete_path"], unused)
        return len(unused)


def remove_expired(database: Database, now: int, audit_log: float) -> None:
    """Remove what accounts leave behind: views, sessions, tokens that are not valid, failed
    sign-ins. ``audit_log`` is in days; 0 keeps all views."""
    with database.write() as transaction:
        # Sessions that have only been idle are removed when the next one is opened.
        transaction.execute(ACCOUNTS_SQL["delete_ended_sessions"], {"now": now, "idle": 0})
        transaction.execute(ACCOUNTS_SQL["delete_ended_failures"], {"now": now})
        transaction.execute(ACCOUNTS_SQL["delete_old_tokens"], {"before": now - _LISTED_TOKEN})
        if audit_log:
            day = (now - int(audit_log * DAY)) // DAY
            transaction.execute(ACCOUNTS_SQL["delete_views_before"], {"day": day})


class _Unit(NamedTuple):
    """The work of one transaction: some nodes, and the runs whose last nodes are among them."""

    runs: dict[int, DueRun]
    #: Pairs of the ids of a node and its run.
    nodes: list[tuple[int, int]]
    finished: list[DueRun]


class Pruner:
    """One retention run over a store."""

    def __init__(
        self,
        database: Database,
        settings: RetentionSettings,
        now: int,
        progress: Progress,
        pause: Callable[[float], object],
    ) -> None:
        self._database = database
        self._now = now
        self._settings = settings
        self._audit_log = settings.audit_log
        self._classes = classes(settings, now)
        self._resolution = round(settings.resolution * 1e9)
        self._progress = progress
        self._sleep = pause
        self._stopped = False
        self._exports = _exports(database)
        self._paths: set[int] = set()
        self._result: dict[str, Pruned] = {}

    def run(self) -> dict[str, Pruned]:
        for data_class in self._classes:
            self._work_through(data_class, self._result.setdefault(data_class.name, Pruned()))
        self._remove_paths()
        days = NodeDayPruner(self._database, self._settings, self._now, self._pause)
        self._result |= days.run()
        if self._result.get("runs", Pruned()).runs and not self._stopped:
            remove_unused_works(self._database)
        remove_expired(self._database, self._now, self._audit_log)
        with self._database.write() as transaction:
            chains.remove_old(transaction, self._now)
        return self._result

    def _work_through(self, data_class: RetentionClass, result: Pruned) -> None:
        with self._database.query() as transaction:
            total, result.waiting = _runs(transaction, data_class)
        downsampling = data_class.name == "downsampled"
        batch_size = DOWNSAMPLED_BATCH_SIZE if downsampling else NODES_BATCH_SIZE
        logger.debug(
            "retention, %s: %d runs are due, %d wait", data_class.name, total, result.waiting
        )
        for page in data_class.pages(self._database):
            with self._database.query() as transaction:
                nodes = _nodes_of(transaction, page)
            for unit in _units(page, nodes, batch_size):
                if self._stopped:
                    return
                self._process(data_class, unit, result)
                self._progress(f"runs, {data_class.name}", min(result.runs, total), total)

    def _process(self, data_class: RetentionClass, unit: _Unit, result: Pruned) -> None:
        name = data_class.name
        downsampled = self._downsample(unit.nodes, result) if name == "downsampled" else {}
        began = time.monotonic()
        with self._database.write() as transaction:
            transaction.lock("job", {run.lock for run in unit.runs.values()})
            # A run for which a record arrived meanwhile waits for the next retention run.
            query = f"SELECT id FROM runs WHERE id IN (:keys) AND {data_class.where()}"
            due = {id for (id,) in transaction.look_up(query, _keys(unit.runs))}
            nodes = [id for id, run_id in unit.nodes if run_id in due]
            for node in nodes:
                if node in downsampled:
                    _replace_chunks(transaction, node, *downsampled[node], result)
            if name in ("series", "runs"):
                _remove_series(transaction, nodes, result)
            if name in ("executables", "runs"):
                result.rows += self._remove_executables(transaction, nodes)
            finished = [run.id for run in unit.finished if run.id in due]
            if len(due) < len(unit.runs):
                logger.debug(
                    "retention, %s: kept because they changed meanwhile: runs %s",
                    data_class.name,
                    sorted(unit.runs.keys() - due),
                )
            if name == "runs":
                result.rows += _remove_gpus(transaction, nodes)
                self._remove_runs(transaction, finished)
            else:
                rows = [(data_class.bit, id) for id in finished]
                transaction.execute_rows(_SQL["mark_pruned"], rows)
        result.runs += len(finished)
        self._pause(time.monotonic() - began)

    def _downsample(
        self, nodes: list[tuple[int, int]], result: Pruned
    ) -> dict[int, tuple[list[int], list[Downsampled]]]:
        """The replacements of chunks, computed before the write lock is acquired."""
        replacements = {}
        for node, _ in nodes:
            with self._database.query() as transaction:
                rows = transaction.execute(_SQL["chunks_of_node"], {"id": node}).fetchall()
            try:
                downsampled = downsample_chunks([data for _, data in rows], self._resolution)
            except ChunkError:
                result.damaged += 1
                continue
            if downsampled:
                replacements[node] = [id for id, _ in rows], downsampled
        return replacements

    def _remove_executables(self, transaction: Transaction, nodes: list[int]) -> int:
        keys = _keys(nodes)
        paths = [path for (path,) in transaction.look_up(_SQL["paths_of_nodes"], keys)]
        steps: int = sum(count for (count,) in transaction.look_up(_SQL["count_steps"], keys))
        self._paths.update(paths)
        for statement in ("delete_executables", "delete_steps"):
            transaction.execute_rows(_SQL[statement], keys)
        return len(paths) + steps

    def _remove_runs(self, transaction: Transaction, ids: list[int]) -> None:
        prune_findings(transaction, ids)
        for statement in _DELETE_RUN:
            transaction.execute_rows(_SQL[statement], _keys(ids))
        for name in self._exports:
            transaction.execute_rows(_SQL["delete_exported"], [(name, id) for id in ids])

    def _remove_paths(self) -> None:
        """Remove the paths that nothing refers to any more."""
        result = self._result["paths"] = Pruned()
        for ids in batched(sorted(self._paths), PATHS_BATCH_SIZE):
            began = time.monotonic()
            result.rows += remove_paths(self._database, ids)
            self._pause(time.monotonic() - began)

    def _pause(self, worked: float) -> bool:
        self._stopped |= bool(self._sleep(min(worked, MAX_PAUSE)))
        return self._stopped


def _number(transaction: Transaction, sql: str) -> int:
    return int(transaction.execute(sql).fetchone()[0] or 0)


def _runs(transaction: Transaction, data_class: RetentionClass) -> tuple[int, int]:
    """How many runs are due, and how many would be without the condition."""
    count = "SELECT count(*) FROM runs WHERE "
    due = _number(transaction, count + data_class.where())
    return due, _number(transaction, count + data_class._replace(condition="").where()) - due


def _nodes_of(transaction: Transaction, runs: list[DueRun]) -> dict[int, list[int]]:
    nodes: dict[int, list[int]] = {run.id: [] for run in runs}
    for run_id, id in transaction.look_up(_SQL["nodes_of_runs"], _keys(nodes)):
        nodes[run_id].append(id)
    return nodes


def _units(runs: list[DueRun], nodes: dict[int, list[int]], batch_size: int) -> Iterator[_Unit]:
    """Divide the work: many small runs in one transaction, a run of many nodes in several."""
    unit = _Unit({}, [], [])
    for run in runs:
        for node in nodes[run.id]:
            if len(unit.nodes) >= batch_size:
                yield unit
                unit = _Unit({}, [], [])
            unit.runs[run.id] = run
            unit.nodes.append((node, run.id))
        unit.runs[run.id] = run
        unit.finished.append(run)
    yield unit


def _keys(ids: Iterable[int]) -> list[tuple[int]]:
    return [(id,) for id in ids]


def _replace_chunks(
    transaction: Transaction,
    node: int,
    ids: list[int],
    downsampled: list[Downsampled],
    result: Pruned,
) -> None:
    rows = transaction.execute(_SQL["chunk_ids"], {"id": node}).fetchall()
    if [row[0] for row in rows] != ids:
        # A part arrived meanwhile; the next retention run downsamples it, too.
        return
    _remove_series(transaction, [node], result)
    parts = [{"run_node_id": node} | part._asdict() for part in downsampled]
    transaction.execute_many(_SQL["insert_downsampled"], parts)
    result.bytes_left += sum(len(part.data) for part in downsampled)


def _remove_series(transaction: Transaction, nodes: list[int], result: Pruned) -> None:
    keys = _keys(nodes)
    for count, size in transaction.look_up(_SQL["size_of_chunks"], keys):
        result.rows += count
        result.bytes += int(size)
    for statement in ("delete_chunks", "clear_open_chunks"):
        transaction.execute_rows(_SQL[statement], keys)


def _exports(database: Database) -> list[str]:
    """The names of the exports, each by one access to the index."""
    names: list[str] = []
    with database.query() as transaction:
        while True:
            values = {"after": names[-1] if names else ""}
            (name,) = transaction.execute(_SQL["next_export"], values).fetchone()
            if name is None:
                return names
            names.append(name)


class DueRun(NamedTuple):
    """A run from which data is to be removed."""

    id: int
    cluster: str
    job_id: int
    end: int

    @property
    def lock(self) -> str:
        """The name under which writers lock its job."""
        return f"{self.cluster} {self.job_id}"


class RetentionClass(NamedTuple):
    """A class of data, and the runs from which it is removed: those with an end from ``since`` on
    and before ``until``."""

    name: str
    since: int
    until: int
    #: The values of ``runs.pruned`` of runs that still have the data; empty means all.
    states: tuple[int, ...]
    #: A further condition, as SQL.
    condition: str
    #: Set in ``runs.pruned`` after the removal.
    bit: int = 0

    def pages(self, database: Database) -> Iterator[list[DueRun]]:
        """The runs in pages, each run once, each page in its own transaction."""
        for query in self.queries():
            values = {"end": self.since, "id": -1, "until": self.until}
            while True:
                with database.query() as transaction:
                    rows = transaction.execute(query, values).fetchall()
                page = [DueRun(*row) for row in rows]
                if page:
                    yield page
                if len(page) < BATCH_SIZE:
                    break
                values |= {"end": page[-1].end, "id": page[-1].id}

    def queries(self) -> list[str]:
        """The query of a page for each state; an index finds the first run that is due."""
        states = [f"pruned = {state}" for state in self.states] or ["true"]
        return [
            f'SELECT id, cluster, job_id, "end" FROM runs WHERE {state} '
            'AND "end" >= :end AND "end" < :until AND ("end" > :end OR id > :id) '
            f'{self.condition} ORDER BY "end", id LIMIT {BATCH_SIZE}'
            for state in states
        ]

    def where(self) -> str:
        """The condition on ``runs`` that all of them meet."""
        states = f"pruned IN ({', '.join(map(str, self.states))})" if self.states else "true"
        return f'{states} AND "end" >= {self.since} AND "end" < {self.until} {self.condition}'


def classes(settings: RetentionSettings, now: int) -> list[RetentionClass]:
    """The classes in the order of work: nothing is downsampled that would be deleted next."""
    runs, series = _cutoff(settings.runs, now), _cutoff(settings.downsampled, now)
    # A run that changed after it was archived is archived again first.
    archived = "AND archived_updated = updated" if settings.only_archived else ""
    # A run that is not yet in the daily rollups would be missing there for ever.
    summed = f"{archived} AND NOT stale"
    result = [
        RetentionClass("runs", _DISTANT_PAST, runs, (), summed),
        RetentionClass("series", runs, series, _without(SERIES), archived, SERIES),
        RetentionClass(
            "executables",
            runs,
            _cutoff(settings.executables, now),
            _without(EXECUTABLES),
            summed,
            EXECUTABLES,
        ),
        RetentionClass(
            "downsampled",
            max(runs, series),
            _cutoff(settings.series, now),
            _without(SERIES | DOWNSAMPLED),
            archived,
            DOWNSAMPLED,
        ),
    ]
    return [data_class for data_class in result if data_class.since < data_class.until]


def _without(bits: int) -> tuple[int, ...]:
    return tuple(state for state in _ALL_STATES if not state & bits)


def _cutoff(days: float, now: int) -> int:
    return now - round(days * DAY) if days else _DISTANT_PAST
