"""Reading of runs from the archive: one run without reading the others, or all runs of a month.

:class:`Reader` has the queries of a store. :func:`attach` lets a store read runs that retention has
pruned from its archive.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobsight.archive.part import MANIFEST, Manifest, cluster_and_month
from jobsight.archive.schema import (
    SCHEMAS,
    Metric,
    columns_of,
    inner_name,
    series_of,
    to_rows,
)
from jobsight.archive.storage import ArchiveError, Storage, open_storage
from jobsight.config.settings import ArchiveSettings
from jobsight.model import SECOND, RunReference
from jobsight.store.read.external import Archive, ArchivedRun
from jobsight.store.read.queries import (
    MetricSummary,
    StoredExecutable,
    StoredSeries,
    StoredStep,
    sum_executables,
    sum_steps,
)
from jobsight.store.series.blocks import SeriesBlock, between, combine, join, summarise
from jobsight.store.store import Store
from jobsight.store.write.archiving import RestoredNode
from jobsight.util.decoding import decode_json_as

#: Cached footers; files never change, so they stay valid.
_MAX_FOOTERS = 256
_SEEN = frozenset(("first_seen", "last_seen"))
_VERSION = ["job_id", "start", "archived", "withdrawn"]
_IDS = ["array_job_id", "array_task_id", "het_job_id", "het_offset"]


class Reader:
    """The queries of a store, answered from an archive."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._footers: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._lock = threading.Lock()

    def executables(self, run: ArchivedRun) -> list[StoredExecutable]:
        """The executables of the run by node, by decreasing CPU time."""
        return sum_executables(self.rows(run, "executables"))

    def steps(self, run: ArchivedRun) -> list[StoredStep]:
        """The steps of the run by node, in the order of their first appearance."""
        rows = self.rows(run, "steps")
        rows.sort(key=lambda row: (row["node"], row["first_seen"], row["step"], row["sighting"]))
        return sum_steps(rows)

    def series(
        self,
        run: ArchivedRun,
        metrics: Sequence[str] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> list[StoredSeries]:
        """The run's time series by node, sorted by time; all metrics if none are given."""
        parts: dict[str, list[SeriesBlock]] = {}
        for node in self.nodes(run, metrics):
            if len(node.series.times):
                parts.setdefault(node.row["node"], []).append(node.series)
        return [
            StoredSeries(node, *between(join(parts[node]), since, until)) for node in sorted(parts)
        ]

    def summaries(self, run: ArchivedRun) -> list[MetricSummary]:
        """Minimum, mean, maximum and last value of each time series."""
        return [
            MetricSummary(series.node, metric, *combine([summary]))
            for series in self.series(run)
            for metric, summary in sorted(
                summarise(SeriesBlock(series.times, series.columns)).items()
            )
        ]

    def run(self, run: ArchivedRun) -> dict[str, Any]:
        """The run's own row."""
        rows = self._select(run.file, run)
        if not rows.num_rows:
            raise ArchiveError(
                f"{self.storage.location}/{run.file} does not contain job {run.job_id}"
            )
        unknown = dict.fromkeys(map(inner_name, SCHEMAS["runs"].names))
        return unknown | to_rows(rows)[0]

    def rows(self, run: ArchivedRun, table: str) -> list[dict[str, Any]]:
        """The run's rows of one table, with times as integers."""
        # An archive of an older release has fewer columns, and no file of a newer table.
        unknown = dict.fromkeys(map(inner_name, SCHEMAS[table].names))
        rows = [
            unknown | row
            for file in self._files(run, table)
            for row in to_rows(self._select(file, run))
        ]
        for row in rows:
            # The store has 0 for a time that the agent did not know.
            for name in _SEEN & row.keys():
                row[name] = row[name] or 0
        return rows

    def nodes(
        self, run: ArchivedRun, metrics: Sequence[str] | None = None
    ) -> Iterator[RestoredNode]:
        """The rows of the run's nodes with their time series of some metrics, or of all."""
        rows = self.rows(run, "nodes")
        blocks: dict[int, list[SeriesBlock]] = {row["sighting"]: [] for row in rows}
        if any(row["sample_count"] for row in rows):
            for file in self._files(run, "series"):
                self._add_series(file, run, rows, metrics, blocks)
        for row in rows:
            yield RestoredNode(row, join(blocks[row["sighting"]]))

    def versions(
        self,
        cluster: str | None = None,
        month: str | None = None,
        reference: RunReference | None = None,
    ) -> list[ArchivedRun]:
        """The newest version of each matching run, by cluster, job id and start."""
        newest: dict[tuple[str, int, int], tuple[int, bool, str]] = {}
        for file in self.parts():
            its_cluster, its_month = cluster_and_month(file)
            if cluster not in (None, its_cluster) or month not in (None, its_month):
                continue
            self.manifest(file)
            table = self._read(file, [*_VERSION, *_IDS])
            if reference is not None:
                table = table.filter(_matches(table, reference))
            for row in to_rows(table.select(_VERSION)):
                key = (its_cluster, row["job_id"], row["start"])
                version = (row["archived"], row["withdrawn"], file)
                newest[key] = max(newest.get(key, version), version)
        return [
            ArchivedRun(file, *key)
            for key, (_, withdrawn, file) in sorted(newest.items())
            if not withdrawn
        ]

    def parts(self, directory: str = "runs") -> list[str]:
        """The files of runs below a directory, one for each part."""
        names = self.storage.names(directory)
        return [name for name in names if name.endswith(".parquet") and "/." not in name]

    def manifest(self, file: str) -> Manifest:
        """The manifest in a file of runs."""
        return _manifest(self.storage, file, self._footer(file))

    def _files(self, run: ArchivedRun, table: str) -> list[str]:
        files = self.manifest(run.file).files
        return [entry.name for entry in files if entry.name.startswith(f"{table}/")]

    def _footer(self, name: str) -> pq.FileMetaData:
        with self._lock:
            if name in self._footers:
                self._footers.move_to_end(name)
                return self._footers[name]
        with self.storage.explained(name), self.storage.open(name) as source:
            footer = pq.read_metadata(source)
        with self._lock:
            self._footers[name] = footer
            if len(self._footers) > _MAX_FOOTERS:
                self._footers.popitem(last=False)
        return footer

    def _read(self, name: str, columns: list[str]) -> pa.Table:
        with self.storage.explained(name), self.storage.open(name) as source:
            file = pq.ParquetFile(source, metadata=self._footer(name), pre_buffer=True)
            return file.read(columns)

    def _select(self, name: str, run: ArchivedRun, columns: list[str] | None = None) -> pa.Table:
        """The rows of one run; only row groups that may contain its job id are read."""
        footer = self._footer(name)
        groups = [
            group for group in range(footer.num_row_groups) if _may_hold(footer, group, run.job_id)
        ]
        with self.storage.explained(name), self.storage.open(name) as source:
            file = pq.ParquetFile(
                source, metadata=footer, pre_buffer=True, page_checksum_verification=True
            )
            table = file.read_row_groups(groups, columns)
            start = pc.cast(table.column("start"), pa.int64())
            same = pc.and_(pc.equal(table.column("job_id"), run.job_id), pc.equal(start, run.start))
            return table.filter(same)

    def _add_series(
        self,
        file: str,
        run: ArchivedRun,
        rows: list[dict[str, Any]],
        metrics: Sequence[str] | None,
        blocks: dict[int, list[SeriesBlock]],
    ) -> None:
        columns = columns_of(self._footer(file).schema.to_arrow_schema())
        if metrics is not None:
            columns = {metric: name for metric, name in columns.items() if metric.name in metrics}
        keys = ["job_id", "start", "sighting", "time"]
        table = self._select(file, run, [*keys, *columns.values()])
        by_number = {row["sighting"]: row for row in rows}
        for number, first, last in _row_ranges(table.column("sighting").to_numpy()):
            rows_of_node = table.slice(first, last - first)
            blocks[number].append(series_of(rows_of_node, _known(by_number[number], columns)))


def _row_ranges(numbers: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
    """The row range of each sighting; its rows are contiguous."""
    edges = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for first, last in itertools.pairwise([*edges, len(numbers)]):
        yield int(numbers[first]), first, last


def _matches(table: pa.Table, reference: RunReference) -> pa.ChunkedArray:
    """Which rows match a reference."""
    job_id = reference.job_id
    if reference.array_task_id is not None:
        matches = _equal(table, array_job_id=job_id, array_task_id=reference.array_task_id)
    elif reference.het_offset is not None:
        matches = _equal(table, het_job_id=job_id, het_offset=reference.het_offset)
    else:
        matches = _equal(table, job_id=job_id)
    if reference.start is not None:
        second = pc.divide(pc.cast(table.column("start"), pa.int64()), SECOND)
        matches = pc.and_(matches, pc.equal(second, reference.start // SECOND))
    return pc.fill_null(matches, False)


def _equal(table: pa.Table, **values: int) -> pa.ChunkedArray:
    first, *others = (pc.equal(table.column(name), value) for name, value in values.items())
    for other in others:
        first = pc.and_(first, other)
    return first


def _known(row: dict[str, Any], columns: Mapping[Metric, str]) -> dict[Metric, str]:
    """The metrics of a sighting, in the store's order."""
    metrics = [Metric(*item) for item in row["metrics"]]
    return {metric: columns[metric] for metric in metrics if metric in columns}


def _may_hold(footer: pq.FileMetaData, group: int, job_id: int) -> bool:
    # The job id is the first column of every table.
    statistics = footer.row_group(group).column(0).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min <= job_id <= statistics.max)


def _manifest(storage: Storage, file: str, footer: pq.FileMetaData) -> Manifest:
    try:
        return decode_json_as(Manifest, (footer.metadata or {})[MANIFEST])
    except (KeyError, msgspec.MsgspecError):
        raise ArchiveError(f"{storage.location}/{file} was not written by jobsight") from None


def attach(store: Store, settings: ArchiveSettings) -> None:
    """Give a store the archive of the settings, if there is one."""
    if settings.location is None:
        return

    # The archive is opened when the first pruned run is read.
    @cache
    def open_reader() -> Archive:
        return Reader(open_storage(settings))

    store.archive = open_reader
