"""A part of the archive: the files of some runs of one cluster and month, written together.

The file of the runs is written last. It lists all others with their digests, and its own digest is
part of its name: a part exists once that file exists, and damage to any file is detected.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa

from jobsight.archive.schema import SCHEMAS, TABLES, Segment, to_table
from jobsight.archive.storage import ArchiveError, FileEntry, SeriesFiles, Storage, TableFile
from jobsight.model import SECOND

#: The key of the manifest in the metadata of the file of the runs.
MANIFEST = b"jobsight"
_RUNS_BATCH_SIZE = 1000


class Manifest(msgspec.Struct):
    """The files of a part."""

    part: str
    runs: int
    samples: int
    files: list[FileEntry]


class Part:
    """Collects rows and time series; :meth:`put` publishes the files."""

    def __init__(self, storage: Storage, cluster: str, month: str, now: int) -> None:
        moment = datetime.fromtimestamp(now // SECOND, UTC).strftime("%Y%m%dT%H%M%SZ")
        self.name = f"{moment}-{secrets.token_hex(4)}"
        self.directory = directory_of(cluster, month)
        self.archived = now
        self._run_rows: list[dict[str, Any]] = []
        self._runs: list[pa.Table] = []
        self._samples = 0
        #: What :meth:`put` brought into its storage, but for the file of the runs.
        self.files: list[FileEntry] = []
        self._storage = storage
        self._tables: dict[str, TableFile] = {}
        self._series = SeriesFiles(storage, self._file("series"))

    def add_runs(self, rows: list[dict[str, Any]]) -> None:
        added = {"part": self.name, "archived": self.archived}
        self._run_rows += [row | added for row in rows]
        self._samples += sum(row["sample_count"] for row in rows)
        # Columns take less memory than rows.
        if len(self._run_rows) >= _RUNS_BATCH_SIZE:
            self._pack_runs()

    def _pack_runs(self) -> None:
        self._runs.append(to_table(self._run_rows, SCHEMAS["runs"]))
        self._run_rows = []

    def add(self, table: str, rows: list[dict[str, Any]]) -> None:
        if table not in self._tables:
            self._tables[table] = TableFile(self._storage, self._file(table), SCHEMAS[table])
        self._tables[table].add([row | {"part": self.name} for row in rows])

    def add_series(self, segment: Segment) -> None:
        self._series.add(segment._replace(part=self.name))

    def size(self) -> int:
        """Bytes written so far."""
        return self._series.size() + sum(file.size() for file in self._tables.values())

    def put(self) -> FileEntry:
        """Publish all files, that of the runs last; returns that one."""
        for table in TABLES[1:-1]:
            # A table without rows gets a file as well, so that queries over all tables work.
            self.add(table, [])
        self.files = [file.put() for file in self._tables.values()]
        self.files += self._series.put()
        self._pack_runs()
        runs = pa.concat_tables(self._runs).combine_chunks()
        manifest = Manifest(self.name, runs.num_rows, self._samples, self.files)
        schema = SCHEMAS["runs"].with_metadata({MANIFEST: msgspec.json.encode(manifest)})
        last = self._tables["runs"] = TableFile(self._storage, self._file("runs"), schema)
        last.write(runs.replace_schema_metadata(schema.metadata))
        return last.put(digest_in_name=True)

    def drop(self) -> None:
        """Remove all files, published ones as well."""
        self._series.drop()
        for file in self._tables.values():
            file.drop()
        remove_part(self._storage, self.directory, self.name)

    def _file(self, table: str) -> str:
        return f"{table}/{self.directory}/{self.name}.parquet"


def remove_part(storage: Storage, directory: str, name: str) -> int:
    """Remove the files of a part, that of the runs first; returns their number."""
    removed = 0
    for table in TABLES:
        for file in storage.names(f"{table}/{directory}"):
            if file.rpartition("/")[2].lstrip(".").startswith(name):
                storage.remove(file)
                removed += 1
    return removed


def month_of(start: int) -> str:
    """The month of a start, in UTC."""
    return datetime.fromtimestamp(start // SECOND, UTC).strftime("%Y-%m")


def directory_of(cluster: str, month: str) -> str:
    """The directories below that of a table, in Hive's layout for DuckDB and Spark."""
    return f"cluster={quote(cluster, safe='')}/month={month}"


def cluster_and_month(file: str) -> tuple[str, str]:
    """The inverse of :func:`directory_of`, for the name of a file."""
    pieces = file.split("/")
    if len(pieces) != 4 or not (
        pieces[1].startswith("cluster=") and pieces[2].startswith("month=")
    ):
        raise ArchiveError(f"{file} is not a file of an archive")
    return unquote(pieces[1].removeprefix("cluster=")), pieces[2].removeprefix("month=")
