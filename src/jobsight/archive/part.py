"""A part of the archive: the files of some runs of one cluster and month, written together.

The file of the runs comes last. It names all others with their digests, and its own digest is in
its name: a part is there once that file is, and damage anywhere is told.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa

from jobsight.archive.schema import SCHEMAS, TABLES, Stretch, to_table
from jobsight.archive.storage import ArchiveError, FileEntry, SeriesFiles, Storage, TableFile
from jobsight.model import SECOND

#: The key of the manifest among the metadata of the file of the runs.
MANIFEST = b"jobsight"
_RUNS_AT_ONCE = 1000


class Manifest(msgspec.Struct):
    """What belongs together."""

    part: str
    runs: int
    samples: int
    files: list[FileEntry]


class Part:
    """Takes rows and curves; :meth:`put` makes all of them appear."""

    def __init__(self, place: Storage, cluster: str, month: str, now: int) -> None:
        moment = datetime.fromtimestamp(now // SECOND, UTC).strftime("%Y%m%dT%H%M%SZ")
        self.name = f"{moment}-{secrets.token_hex(4)}"
        self.folder = directory_of(cluster, month)
        self.archived = now
        self._waiting: list[dict[str, Any]] = []
        self._runs: list[pa.Table] = []
        self._samples = 0
        #: What :meth:`put` brought into its place, but for the file of the runs.
        self.files: list[FileEntry] = []
        self._place = place
        self._tables: dict[str, TableFile] = {}
        self._series = SeriesFiles(place, self._file("series"))

    def add_runs(self, rows: list[dict[str, Any]]) -> None:
        added = {"part": self.name, "archived": self.archived}
        self._waiting += [row | added for row in rows]
        self._samples += sum(row["sample_count"] for row in rows)
        # As columns they take little room.
        if len(self._waiting) >= _RUNS_AT_ONCE:
            self._pack_runs()

    def _pack_runs(self) -> None:
        self._runs.append(to_table(self._waiting, SCHEMAS["runs"]))
        self._waiting = []

    def add(self, table: str, rows: list[dict[str, Any]]) -> None:
        if table not in self._tables:
            self._tables[table] = TableFile(self._place, self._file(table), SCHEMAS[table])
        self._tables[table].add([row | {"part": self.name} for row in rows])

    def add_series(self, stretch: Stretch) -> None:
        self._series.add(stretch._replace(part=self.name))

    def size(self) -> int:
        """Bytes written so far."""
        return self._series.size() + sum(file.size() for file in self._tables.values())

    def put(self) -> FileEntry:
        """Bring all files into their places, that of the runs last; gives that one."""
        for table in TABLES[1:-1]:
            # A table that nobody has rows for is a file, too: who asks for all of them finds one.
            self.add(table, [])
        self.files = [file.put() for file in self._tables.values()]
        self.files += self._series.put()
        self._pack_runs()
        runs = pa.concat_tables(self._runs).combine_chunks()
        manifest = Manifest(self.name, runs.num_rows, self._samples, self.files)
        schema = SCHEMAS["runs"].with_metadata({MANIFEST: msgspec.json.encode(manifest)})
        last = self._tables["runs"] = TableFile(self._place, self._file("runs"), schema)
        last.write(runs.replace_schema_metadata(schema.metadata))
        return last.put(digest_in_name=True)

    def drop(self) -> None:
        """Remove all of it, what is in its place already as well."""
        self._series.drop()
        for file in self._tables.values():
            file.drop()
        remove_part(self._place, self.folder, self.name)

    def _file(self, table: str) -> str:
        return f"{table}/{self.folder}/{self.name}.parquet"


def remove_part(place: Storage, folder: str, name: str) -> int:
    """Remove the files of a part, that of the runs first; how many there were."""
    removed = 0
    for table in TABLES:
        for file in place.names(f"{table}/{folder}"):
            if file.rpartition("/")[2].lstrip(".").startswith(name):
                place.remove(file)
                removed += 1
    return removed


def month_of(start: int) -> str:
    """The month of a start, in UTC."""
    return datetime.fromtimestamp(start // SECOND, UTC).strftime("%Y-%m")


def directory_of(cluster: str, month: str) -> str:
    """The folders below that of a table, as Hive, DuckDB and Spark expect them."""
    return f"cluster={quote(cluster, safe='')}/month={month}"


def cluster_and_month(file: str) -> tuple[str, str]:
    """What :func:`folder_of` made into the name of a file."""
    pieces = file.split("/")
    if len(pieces) != 4 or not (
        pieces[1].startswith("cluster=") and pieces[2].startswith("month=")
    ):
        raise ArchiveError(f"{file} is no file of an archive")
    return unquote(pieces[1].removeprefix("cluster=")), pieces[2].removeprefix("month=")
