"""One Parquet file on its way: written aside, then put into its place with a digest."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from jobsight.archive.place import Place, digest_of
from jobsight.archive.wide import (
    GROUP_VALUES,
    INTEGER,
    MAX_METRICS,
    Metric,
    Stretch,
    columns_of,
    metrics_of,
    pieces,
    wide_schema,
    wide_table,
)

#: Rows of the small tables in one row group.
_GROUP_ROWS = 10_000
_LEVEL = 9


class FileEntry(msgspec.Struct):
    """What the manifest of a part says of a file."""

    name: str
    rows: int
    size: int
    digest: str


class TableFile:
    """A file of one table; rows are kept until they are worth a row group."""

    def __init__(self, place: Place, name: str, schema: pa.Schema) -> None:
        self.name = name
        self.schema = schema
        self.rows = 0
        self._place = place
        self._waiting: list[dict[str, Any]] = []
        self._temporary = place.temporary(name)
        encodings = _encodings(schema)
        with place.explained(name):
            self._writer = pq.ParquetWriter(
                str(self._temporary),
                schema,
                compression="zstd",
                compression_level=_LEVEL,
                use_dictionary=[field for field in schema.names if field not in encodings],
                column_encoding=encodings or None,
                write_page_checksum=True,
            )

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Write rows, now or a little later."""
        self._waiting += rows
        if len(self._waiting) >= _GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            rows, self._waiting = self._waiting, []
            self.write(pa.Table.from_pylist(rows, self.schema))

    def write(self, table: pa.Table) -> None:
        """Write one row group."""
        with self._place.explained(self.name):
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self.rows += table.num_rows

    def put(self, *, digest_in_name: bool = False) -> FileEntry:
        """Finish the file and give it its name."""
        self.flush()
        with self._place.explained(self.name):
            self._writer.close()
            digest = digest_of(self._temporary)
            size = self._temporary.stat().st_size
            if digest_in_name:
                self.name = self.name.replace(".parquet", f"-{digest}.parquet")
            self._place.put(self._temporary, self.name)
        return FileEntry(self.name, self.rows, size, digest)

    def size(self) -> int:
        """Bytes written so far."""
        return self._temporary.stat().st_size

    def drop(self) -> None:
        """Forget a file that was not put."""
        # A full disk fails here once more.
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        self._place.discard(self._temporary)


def _encodings(schema: pa.Schema) -> dict[str, str]:
    """Curves and their times are no dictionary's business."""
    metrics = columns_of(schema)
    encodings = {"time": "DELTA_BINARY_PACKED"} if "time" in schema.names else {}
    for metric, column in metrics.items():
        whole = metric.kind == INTEGER
        encodings[column] = "DELTA_BINARY_PACKED" if whole else "BYTE_STREAM_SPLIT"
    return encodings


class SeriesFiles:
    """The curves of a part. A metric that no row before had begins another file."""

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self._name = name
        self._files: list[TableFile] = []
        self._waiting: list[Stretch] = []
        self._waiting_rows = 0
        #: Of what waits, and of the file that is open.
        self._metrics: set[Metric] = set()
        self._columns: set[Metric] = set()

    def add(self, stretch: Stretch) -> None:
        for piece in pieces(stretch):
            metrics = {Metric(*item) for item in metrics_of(piece.curves).items()}
            rows = self._waiting_rows + len(piece.curves.times)
            union = self._metrics | metrics
            if rows * len(union) > GROUP_VALUES or len(union) > MAX_METRICS:
                self.flush()
            self._waiting.append(piece)
            self._waiting_rows += len(piece.curves.times)
            self._metrics |= metrics

    def flush(self) -> None:
        """Write what waits as one row group."""
        if not self._waiting and self._files:
            return
        if not self._files or not self._metrics <= self._columns:
            union = self._columns | self._metrics
            self._columns = union if len(union) <= MAX_METRICS else self._metrics
            name = self._name.replace(".parquet", f"-{len(self._files)}.parquet")
            self._files.append(TableFile(self._place, name, wide_schema(self._columns)))
        if self._waiting:
            self._files[-1].write(wide_table(self._waiting, self._files[-1].schema))
        self._waiting, self._waiting_rows, self._metrics = [], 0, set()

    def put(self) -> list[FileEntry]:
        self.flush()
        return [file.put() for file in self._files]

    def size(self) -> int:
        return sum(file.size() for file in self._files)

    def drop(self) -> None:
        for file in self._files:
            file.drop()
