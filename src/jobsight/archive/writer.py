"""Archiving of finished runs: every version of a run is archived exactly once.

:func:`write_archive` is one round, :func:`archiving` repeats it in a server. A part is recorded in
the store before its files are written; the file with the runs comes last, and one transaction then
marks the runs and removes the record. A record that is found later names the files of a killed
process, and the next round removes them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from jobsight.archive.part import Part, month_of, remove_part
from jobsight.archive.reader import Reader
from jobsight.archive.restore import restore
from jobsight.archive.schema import Segment, metrics_of
from jobsight.archive.storage import ArchiveError, Storage, open_storage
from jobsight.config.settings import ArchiveSettings
from jobsight.errors import JobsightError
from jobsight.model import SECOND, JobTotals
from jobsight.store.findings.rows import FindingRow
from jobsight.store.read import archiving as stored
from jobsight.store.schema.statements import (
    GPU_NAMES,
    INFO_NAMES,
    PEAK_FIGURES,
    SUMMED_FIGURES,
)
from jobsight.store.series import codec
from jobsight.store.series.blocks import MAX_VALUES, SeriesBlock, join
from jobsight.store.store import Store
from jobsight.store.write.archiving import (
    ArchivedVersion,
    PartInProgress,
    archive_lock,
    begin_part,
    end_part,
    parts_in_progress,
)
from jobsight.store.write.gpus import GpuSums
from jobsight.store.write.runs import info_from_columns
from jobsight.text import readable_path
from jobsight.util.workers import PeriodicWorker

if TYPE_CHECKING:
    from jobsight.store.database import Connection

logger = logging.getLogger(__name__)

#: Runs of one part: they are marked in one transaction.
MAX_PART_RUNS = 10_000
#: Bytes after which a part ends.
PART_SIZE = 512 << 20
#: Runs read from the store with one query.
_BATCH_SIZE = 200
#: Nodes of runs whose rows are held in memory.
_MAX_NODES = 1000
_DAY: Final = 86400 * SECOND

_decode_totals = msgspec.msgpack.Decoder(JobTotals).decode
_TOTALS: Final = tuple(name for name in JobTotals.__struct_fields__ if name != "time")
_RUN: Final = (
    *("job_id", "start", "updated", "provisional"),
    *("cpu_time", "memory_used_peak", "memory_peak", "first_seen", "last_seen"),
    *GpuSums._fields,
)
_NODE: Final = (
    *("node", "boot_id", "birth", "sluid", "restart_count", "epoch", "written", "final"),
    *("first_sample", "last_sample"),
)
_EXECUTABLE: Final = (
    *("path", "path_known", "own_namespace", "epoch", "sequence", *SUMMED_FIGURES, *PEAK_FIGURES),
)
_STEP: Final = (
    *("step", "tasks", "cpu_time", "cpu_overhead", "memory_peak", "oom_kills", "ended"),
    *("gpu_time", "gpu_memory_peak"),
)


_GPU: Final = ("epoch", "sequence", *GPU_NAMES)
#: The columns of GPUs that are documents.
_GPU_DOCUMENTS: Final = ("throttled_time", "faults", "coverage")


class Archived(msgspec.Struct):
    """The result of a round, or of a dry run."""

    runs: int = 0
    #: Of these, runs that had changed since they were archived.
    again: int = 0
    parts: int = 0
    samples: int = 0
    size: int = 0
    #: Files of a killed process.
    removed: int = 0
    #: Runs by cluster and month.
    months: dict[str, int] = msgspec.field(default_factory=dict)
    #: Why runs were left out, a sentence each.
    problems: list[str] = msgspec.field(default_factory=list)


class _Group(NamedTuple):
    cluster: str
    month: str
    ids: Sequence[int]


class Stopped(Exception):
    """The server stops; the part in progress is dropped and written in the next round."""


def archiving(store: Store, settings: ArchiveSettings) -> PeriodicWorker:
    """A thread that archives every ``archive.interval`` seconds."""

    def work(stopped: threading.Event) -> None:
        with contextlib.suppress(Stopped):
            archive_once(store, settings, stopped)

    return PeriodicWorker(
        "archive",
        work,
        settings.interval,
        logger=logger,
        failure="the archive is not written",
        # The first round of a store with years of runs.
        time_limit=86400.0,
    )


def archive_once(store: Store, settings: ArchiveSettings, stopped: threading.Event) -> None:
    """One round, which ends early when the server stops."""

    def stop_early(done: int, total: int) -> None:
        if stopped.is_set():
            raise Stopped

    before = time.time_ns() - round(settings.older_than * _DAY)
    done = write_archive(store, open_storage(settings), before, progress=stop_early)
    if done.runs:
        logger.info("%d runs archived in %d parts", done.runs, done.parts)
    if done.problems:
        more = len(done.problems) - 1
        raise ArchiveError(f"{done.problems[0]}{f' (and {more} more)' if more else ''}")


def write_archive(
    store: Store,
    storage: Storage,
    before: int,
    *,
    dry_run: bool = False,
    new_archive: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
    clock: Callable[[], int] = time.time_ns,
) -> Archived:
    """Archive all runs that ended before a time and have changed since they were archived.

    A storage without the files that the store refers to is refused, unless ``new_archive``.
    """
    this = _Round(store, storage, before, clock)
    if dry_run:
        this.done.runs = sum(len(group.ids) for group in this.pending())
        return this.done
    with archive_lock(store.database):
        storage.prepare()
        if not new_archive:
            this.check_storage()
        this.remove_leftovers()
        this.withdraw()
        groups = this.pending()
        total = sum(len(group.ids) for group in groups)
        for group in groups:
            ids = group.ids
            while len(ids):
                part = Part(storage, group.cluster, group.month, clock())
                ids = ids[this.write(part, ids, lambda done: progress(done, total)) :]
    return this.done


class _Round:
    """One pass over the pending runs."""

    def __init__(
        self, store: Store, storage: Storage, before: int, clock: Callable[[], int]
    ) -> None:
        self.done = Archived()
        self._store = store
        self._storage = storage
        self._reader = Reader(storage)
        self._before = before
        self._clock = clock
        #: Runs whose version under another start has been withdrawn.
        self._withdrawn: set[int] = set()

    def pending(self) -> list[_Group]:
        """The ids of the pending runs by cluster and month, in the order of their job ids."""
        # Two integers per run: millions of runs may be pending.
        by_month: dict[tuple[str, str], tuple[array[int], array[int]]] = {}
        for run in stored.iterate_pending(self._store.database, self._before):
            key = (run.cluster, month_of(run.start))
            job_ids, ids = by_month.setdefault(key, (array("q"), array("q")))
            job_ids.append(run.job_id)
            ids.append(run.id)
            self.done.again += run.archived is not None
        groups = []
        for (cluster, month), (job_ids, ids) in sorted(by_month.items()):
            order = np.lexsort((np.array(ids), np.array(job_ids)))
            groups.append(_Group(cluster, month, np.array(ids)[order].tolist()))
            self.done.months[f"{cluster} {month}"] = len(ids)
        return groups

    def write(self, part: Part, ids: Sequence[int], progress: Callable[[int], None]) -> int:
        """Archive the first of some runs in one part; returns the number of processed ids."""
        count = 0
        versions: list[ArchivedVersion] = []
        with self._recorded(part):
            while count < min(len(ids), MAX_PART_RUNS) and part.size() < PART_SIZE:
                some = ids[count : min(count + _BATCH_SIZE, MAX_PART_RUNS)]
                complete = self._restore_pruned(some)
                with self._store.database.read() as connection:
                    for portion in portions(connection, complete):
                        versions += self._add(part, connection, read_runs(connection, portion))
                count += len(some)
                progress(self.done.runs + len(versions))
            if not versions:
                part.drop()
                self._end_part("", [])
                return count
            entry = part.put()
        self._end_part(entry.name, versions)
        self.done.runs += len(versions)
        self.done.parts += 1
        self.done.size += entry.size + sum(file.size for file in part.files)
        return count

    def _add(
        self, part: Part, connection: Connection, runs: list[RunToArchive]
    ) -> Iterator[ArchivedVersion]:
        # A run whose start has just changed waits for the next round.
        runs = [
            run
            for run in runs
            if run.archived_start in (None, run.start) or run.id in self._withdrawn
        ]
        for segment in read_segments(connection, runs):
            part.add_series(segment)
        for run in runs:
            part.add("nodes", list(run.nodes.values()))
            part.add("executables", run.executables)
            part.add("steps", run.steps)
            part.add("gpus", run.gpus)
            part.add("findings", run.findings)
            part.add_runs([run.row])
            self.done.samples += run.row["sample_count"]
            yield ArchivedVersion(run.id, run.updated, run.start)

    def _restore_pruned(self, ids: Sequence[int]) -> list[int]:
        """Restore the pruned runs among those with new data, because a version is complete.

        Returns the ids without the runs that could not be restored.
        """
        failed = set()
        for run_id, run in stored.pruned_runs(self._store.database, ids):
            try:
                restore(self._store, self._reader, run, into=run_id)
            except ArchiveError as error:
                failed.add(run_id)
                self.done.problems.append(
                    f"job {run.job_id} of {run.cluster} has changed, but {error}; it is archived "
                    "once that file is back"
                )
        return [run_id for run_id in ids if run_id not in failed]

    def check_storage(self) -> None:
        """Refuse an empty storage if the store refers to files in it: a disk that is not mounted
        must not receive the next part."""
        file = stored.any_archived_file(self._store.database)
        if file is not None and not self._storage.exists(file):
            raise ArchiveError(
                f"the archive {self._storage.location} has no {file}, which the store refers to; "
                "mount it or correct archive.location, or start another archive with --new-archive"
            )

    def withdraw(self) -> None:
        """Withdraw the archived versions of runs that have another start now."""
        moved = stored.moved_runs(self._store.database, self._before)
        parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for run in moved:
            row = {
                "job_id": run.job_id,
                "start": run.archived_start,
                "updated": run.updated,
                "withdrawn": True,
                "sample_count": 0,
            }
            parts.setdefault((run.cluster, month_of(run.archived_start)), []).append(row)
        for (cluster, month), rows in parts.items():
            part = Part(self._storage, cluster, month, self._clock())
            with self._recorded(part):
                part.add_runs(rows)
                part.put()
            self._end_part("", [])
        self._withdrawn = {run.id for run in moved}

    @contextlib.contextmanager
    def _recorded(self, part: Part) -> Iterator[None]:
        """Record the part in the store; if writing fails, drop the part."""
        record = PartInProgress(self._storage.location, part.directory, part.name)
        begin_part(self._store.database, record)
        try:
            yield
        except BaseException:
            # If this fails as well, the record stays and the next round removes the files.
            with contextlib.suppress(JobsightError):
                part.drop()
                self._end_part("", [])
            raise

    def _end_part(self, file: str, versions: list[ArchivedVersion]) -> None:
        end_part(self._store.database, file, versions)

    def remove_leftovers(self) -> None:
        """Remove the files of a killed process."""
        for record in parts_in_progress(self._store.database):
            # In another archive than that of the settings, no run refers to them.
            if record.location == self._storage.location:
                self.done.removed += remove_part(self._storage, record.folder, record.part)
                logger.info("removed part %s of a process that was killed", record.part)
            self._end_part("", [])


class RunToArchive(NamedTuple):
    """A run with everything that belongs to it, except its time series."""

    id: int
    updated: int
    start: int
    #: The start of the archived version.
    archived_start: int | None
    #: Rows of the archive's tables; those of nodes by the store's id.
    row: dict[str, Any]
    nodes: dict[int, dict[str, Any]]
    executables: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    gpus: list[dict[str, Any]]
    findings: list[dict[str, Any]]


def portions(connection: Connection, ids: Sequence[int]) -> Iterator[list[int]]:
    """The ids in portions whose nodes fit into memory."""
    nodes = stored.node_counts(connection, ids)
    some: list[int] = []
    held = 0
    for run_id in ids:
        held += nodes.get(run_id, 0)
        if some and held > _MAX_NODES:
            yield some
            some, held = [], nodes.get(run_id, 0)
        some.append(run_id)
    yield some


def read_runs(connection: Connection, ids: Sequence[int]) -> list[RunToArchive]:
    """Runs of the store as rows of the archive, in the order of their job ids."""
    runs = {}
    for row in stored.run_rows(connection, ids):
        runs[row["id"]] = RunToArchive(
            id=row["id"],
            updated=row["updated"],
            start=row["start"],
            archived_start=row["archived_start"],
            row=_run(row),
            nodes={},
            executables=[],
            steps=[],
            gpus=[],
            findings=[],
        )
    owners: dict[int, RunToArchive] = {}
    for row in stored.node_rows(connection, ids):
        run = owners[row["id"]] = runs[row["run_id"]]
        run.nodes[row["id"]] = _node(run, row)
    for row in stored.executable_rows(connection, ids):
        run = owners[row["run_node_id"]]
        path_text = readable_path(bytes(row["path"]))
        run.executables.append(_child(run, row, _EXECUTABLE) | {"path_text": path_text})
    for row in stored.step_rows(connection, ids):
        run = owners[row["run_node_id"]]
        run.steps.append(_child(run, row, _STEP))
    for row in stored.gpu_rows(connection, ids):
        run = owners[row["run_node_id"]]
        documents = {name: _json_of(row[name]) for name in _GPU_DOCUMENTS}
        run.gpus.append(_child(run, row, _GPU) | documents)
    for finding in stored.finding_rows(connection, ids):
        run = runs[finding.run_id]
        run.findings.append(_finding(run, finding))
    for run in runs.values():
        run.row["finding_count"] = len(run.findings)
        run.row["node_count"] = len(run.nodes)
        run.row["executable_count"] = len(run.executables)
        run.row["step_count"] = len(run.steps)
        run.row["gpu_row_count"] = len(run.gpus)
    return list(runs.values())


def _run(row: Any) -> dict[str, Any]:
    columns = {name: row[name] for name in INFO_NAMES}
    info = info_from_columns(row["cluster"], row["job_id"], None, columns)
    result = {name: getattr(info, name) for name in INFO_NAMES}
    result["nodes"] = None if info.nodes is None else list(info.nodes)
    result["tres"] = None if info.tres is None else list(info.tres.items())
    result |= {name: row[name] for name in _RUN}
    return result | {"withdrawn": False, "sample_count": 0, "details": row["details"]}


def _node(run: RunToArchive, row: Any) -> dict[str, Any]:
    totals = None if row["totals"] is None else _decode_totals(row["totals"])
    result = {"job_id": row["job_id"], "start": run.start, "sighting": len(run.nodes)}
    result |= {name: row[name] for name in _NODE}
    result |= {name: getattr(totals, name, None) for name in _TOTALS}
    result["counted"] = None if totals is None else totals.time
    return result | {"coverage": _json_of(row["coverage"]), "metrics": [], "sample_count": 0}


def _finding(run: RunToArchive, row: FindingRow) -> dict[str, Any]:
    result = {"job_id": run.row["job_id"], "start": run.start, "finding_state": row.state}
    names = ("audience", "first", "last", "weight", "reply_user", "reply_time", "data")
    result |= {name: getattr(row, name) for name in names}
    document = row.document()
    texts = {name: document[name] for name in ("kind", "severity", "title", "text", "change")}
    return result | texts | row.hours()


def _json_of(document: bytes | None) -> str | None:
    """A msgpack document of the store as JSON."""
    if document is None:
        return None
    return msgspec.json.encode(msgspec.msgpack.decode(document)).decode()


def _sighting(run: RunToArchive, run_node_id: int) -> dict[str, Any]:
    node = run.nodes[run_node_id]
    return {name: node[name] for name in ("job_id", "start", "sighting", "node")}


def _child(run: RunToArchive, row: Any, names: Sequence[str]) -> dict[str, Any]:
    """A row of executables, steps or GPUs with the columns of its sighting."""
    result = _sighting(run, row["run_node_id"]) | {name: row[name] for name in names}
    # The store has 0 for a time that the agent did not know.
    return result | {name: row[name] or None for name in ("first_seen", "last_seen")}


def read_segments(connection: Connection, runs: Sequence[RunToArchive]) -> Iterator[Segment]:
    """The time series of some runs by sighting; adds metrics and sample counts to their rows."""
    owners = {run_node_id: run for run in runs for run_node_id in run.nodes}
    chunks = stored.chunk_rows(connection, [run.id for run in runs])
    for run_node_id, block in _joined(chunks):
        run = owners[run_node_id]
        node = run.nodes[run_node_id]
        known = dict(node["metrics"])
        node["metrics"] = list((known | metrics_of(block)).items())
        node["sample_count"] += len(block.times)
        run.row["sample_count"] += len(block.times)
        yield Segment(**_sighting(run, run_node_id), part="", block=block)


def _joined(chunks: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, SeriesBlock]]:
    """Decoded chunks of each node, joined up to a limit that a reader's memory allows."""
    blocks: list[SeriesBlock] = []
    owner, values = 0, 0
    for run_node_id, data in chunks:
        block = SeriesBlock(*codec.decode(data))
        size = len(block.times) * len(block.columns)
        if blocks and (run_node_id != owner or values + size > MAX_VALUES):
            yield owner, join(blocks)
            blocks, values = [], 0
        blocks.append(block)
        owner, values = run_node_id, values + size
    if blocks:
        yield owner, join(blocks)
