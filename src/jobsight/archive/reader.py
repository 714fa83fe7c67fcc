"""Reads runs out of the archive: one without a look at the others, or all of a month.

Lets a store read what was pruned from the archive of the settings.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobsight.archive.part import MANIFEST, Manifest, cluster_and_month
from jobsight.archive.schema import Metric, columns_of, series_of, to_rows
from jobsight.archive.storage import ArchiveError, Storage
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
from jobsight.store.series.curves import SeriesBlock, between, combine, join, summarise
from jobsight.store.store import Store

#: Footers that are kept; files never change, so they stay true.
_FOOTERS = 256
_SEEN = frozenset(("first_seen", "last_seen"))
_VERSION = ["job_id", "start", "archived", "withdrawn"]
_IDS = ["array_job_id", "array_task_id", "het_job_id", "het_offset"]


class Sighting(NamedTuple):
    """A row of ``nodes`` and its curves."""

    row: dict[str, Any]
    curves: SeriesBlock


class Reader:
    """What the pages ask of a store, asked of an archive."""

    def __init__(self, place: Storage) -> None:
        self.place = place
        self._footers: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._lock = threading.Lock()

    def executables(self, run: ArchivedRun) -> list[StoredExecutable]:
        """What the run executed, by node, the most CPU time first."""
        return sum_executables(self.rows(run, "executables"))

    def steps(self, run: ArchivedRun) -> list[StoredStep]:
        """The steps of the run, by node, in the order in which they were first seen."""
        found = self.rows(run, "steps")
        found.sort(key=lambda row: (row["node"], row["first_seen"], row["step"], row["sighting"]))
        return sum_steps(found)

    def series(
        self,
        run: ArchivedRun,
        metrics: Sequence[str] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> list[StoredSeries]:
        """The run's curves by node, sorted by time; all metrics where none are named."""
        parts: dict[str, list[SeriesBlock]] = {}
        for sighting in self.sightings(run, metrics):
            if len(sighting.curves.times):
                parts.setdefault(sighting.row["node"], []).append(sighting.curves)
        return [
            StoredSeries(node, *between(join(parts[node]), since, until)) for node in sorted(parts)
        ]

    def summaries(self, run: ArchivedRun) -> list[MetricSummary]:
        """Minimum, mean, maximum and last of each curve."""
        return [
            MetricSummary(series.node, metric, *combine([summary]))
            for series in self.series(run)
            for metric, summary in sorted(
                summarise(SeriesBlock(series.times, series.columns)).items()
            )
        ]

    def run(self, run: ArchivedRun) -> dict[str, Any]:
        """The run's own row."""
        found = self._select(run.file, run)
        if not found.num_rows:
            raise ArchiveError(f"{self.place.location}/{run.file} does not hold job {run.job_id}")
        return to_rows(found)[0]

    def rows(self, run: ArchivedRun, table: str) -> list[dict[str, Any]]:
        """The run's rows of one of the tables, times as numbers."""
        (file,) = self._files(run, table)
        found = to_rows(self._select(file, run))
        for row in found:
            # In the store, zero stands for a time that the agent did not know.
            for name in _SEEN & row.keys():
                row[name] = row[name] or 0
        return found

    def sightings(
        self, run: ArchivedRun, metrics: Sequence[str] | None = None
    ) -> Iterator[Sighting]:
        """The run on each of its nodes, with the curves that are wanted."""
        rows = self.rows(run, "nodes")
        pieces: dict[int, list[SeriesBlock]] = {row["sighting"]: [] for row in rows}
        if any(row["sample_count"] for row in rows):
            for file in self._files(run, "series"):
                self._add_curves(file, run, rows, metrics, pieces)
        for row in rows:
            yield Sighting(row, join(pieces[row["sighting"]]))

    def versions(
        self,
        cluster: str | None = None,
        month: str | None = None,
        reference: RunReference | None = None,
    ) -> list[ArchivedRun]:
        """The newest version of each run that is meant, by cluster, job id and start."""
        newest: dict[tuple[str, int, int], tuple[int, bool, str]] = {}
        for file in self.parts():
            its_cluster, its_month = cluster_and_month(file)
            if cluster not in (None, its_cluster) or month not in (None, its_month):
                continue
            self.manifest(file)
            table = self._read(file, [*_VERSION, *_IDS])
            if reference is not None:
                table = table.filter(_meant(table, reference))
            for row in to_rows(table.select(_VERSION)):
                key = (its_cluster, row["job_id"], row["start"])
                version = (row["archived"], row["withdrawn"], file)
                newest[key] = max(newest.get(key, version), version)
        return [
            ArchivedRun(file, *key)
            for key, (_, withdrawn, file) in sorted(newest.items())
            if not withdrawn
        ]

    def parts(self, folder: str = "runs") -> list[str]:
        """The files of runs below a folder, each of which stands for a part."""
        names = self.place.names(folder)
        return [name for name in names if name.endswith(".parquet") and "/." not in name]

    def manifest(self, file: str) -> Manifest:
        """What belongs to a file of runs."""
        return _manifest(self.place, file, self._footer(file))

    def _files(self, run: ArchivedRun, table: str) -> list[str]:
        files = self.manifest(run.file).files
        return [entry.name for entry in files if entry.name.startswith(f"{table}/")]

    def _footer(self, name: str) -> pq.FileMetaData:
        with self._lock:
            if name in self._footers:
                self._footers.move_to_end(name)
                return self._footers[name]
        with self.place.explained(name), self.place.open(name) as source:
            footer = pq.read_metadata(source)
        with self._lock:
            self._footers[name] = footer
            if len(self._footers) > _FOOTERS:
                self._footers.popitem(last=False)
        return footer

    def _read(self, name: str, columns: list[str]) -> pa.Table:
        with self.place.explained(name), self.place.open(name) as source:
            file = pq.ParquetFile(source, metadata=self._footer(name), pre_buffer=True)
            return file.read(columns)

    def _select(self, name: str, run: ArchivedRun, columns: list[str] | None = None) -> pa.Table:
        """The rows of one run: only row groups that may hold its job id are read."""
        footer = self._footer(name)
        groups = [
            place for place in range(footer.num_row_groups) if _may_hold(footer, place, run.job_id)
        ]
        with self.place.explained(name), self.place.open(name) as source:
            file = pq.ParquetFile(
                source, metadata=footer, pre_buffer=True, page_checksum_verification=True
            )
            found = file.read_row_groups(groups, columns)
            start = pc.cast(found.column("start"), pa.int64())
            same = pc.and_(pc.equal(found.column("job_id"), run.job_id), pc.equal(start, run.start))
            return found.filter(same)

    def _add_curves(
        self,
        file: str,
        run: ArchivedRun,
        rows: list[dict[str, Any]],
        wanted: Sequence[str] | None,
        pieces: dict[int, list[SeriesBlock]],
    ) -> None:
        columns = columns_of(self._footer(file).schema.to_arrow_schema())
        if wanted is not None:
            columns = {metric: name for metric, name in columns.items() if metric.name in wanted}
        keys = ["job_id", "start", "sighting", "time"]
        found = self._select(file, run, [*keys, *columns.values()])
        by_number = {row["sighting"]: row for row in rows}
        for number, first, last in _stretches(found.column("sighting").to_numpy()):
            mine = found.slice(first, last - first)
            pieces[number].append(series_of(mine, _known(by_number[number], columns)))


def _stretches(numbers: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
    """Where the rows of each sighting lie: they are written together."""
    edges = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for first, last in itertools.pairwise([*edges, len(numbers)]):
        yield int(numbers[first]), first, last


def _meant(table: pa.Table, reference: RunReference) -> pa.ChunkedArray:
    """Which rows a person means."""
    job_id = reference.job_id
    if reference.array_task_id is not None:
        found = _equal(table, array_job_id=job_id, array_task_id=reference.array_task_id)
    elif reference.het_offset is not None:
        found = _equal(table, het_job_id=job_id, het_offset=reference.het_offset)
    else:
        found = _equal(table, job_id=job_id)
    if reference.start is not None:
        second = pc.divide(pc.cast(table.column("start"), pa.int64()), SECOND)
        found = pc.and_(found, pc.equal(second, reference.start // SECOND))
    return pc.fill_null(found, False)


def _equal(table: pa.Table, **values: int) -> pa.ChunkedArray:
    first, *others = (pc.equal(table.column(name), value) for name, value in values.items())
    for other in others:
        first = pc.and_(first, other)
    return first


def _known(row: dict[str, Any], columns: Mapping[Metric, str]) -> dict[Metric, str]:
    """The metrics that this sighting has, in the store's order."""
    there = [Metric(*item) for item in row["metrics"]]
    return {metric: columns[metric] for metric in there if metric in columns}


def _may_hold(footer: pq.FileMetaData, group: int, job_id: int) -> bool:
    # The job id is the first column of every table.
    statistics = footer.row_group(group).column(0).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min <= job_id <= statistics.max)


def _manifest(place: Storage, file: str, footer: pq.FileMetaData) -> Manifest:
    try:
        return msgspec.json.decode((footer.metadata or {})[MANIFEST], type=Manifest)
    except (KeyError, msgspec.MsgspecError):
        raise ArchiveError(f"{place.location}/{file} was not written by jobsight") from None


def attach(store: Store, settings: ArchiveSettings) -> None:
    """Give a store its archive, where there is one."""
    if settings.location is None:
        return

    # Arrow is large: it is loaded when the first pruned run is looked at.
    @cache
    def open_reader() -> Archive:
        from jobsight.archive.storage import open_storage
        # MOVED

        return Reader(open_storage(settings))

    store.archive = open_reader
