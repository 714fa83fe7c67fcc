"""Storage of an archive: a directory or an S3 bucket, and the Parquet files written to it.

:class:`Storage` publishes complete files only. :class:`TableFile` and :class:`SeriesFiles` write
Parquet files under temporary names and publish them with a digest.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from jobsight.archive.schema import (
    GROUP_VALUES,
    INTEGER,
    MAX_METRICS,
    Metric,
    Segment,
    columns_of,
    metrics_of,
    pieces,
    to_table,
    wide_schema,
    wide_table,
)
from jobsight.config.settings import ArchiveSettings, S3Settings
from jobsight.errors import ConfigError, StoreError
from jobsight.util.durable import make_directories, sync_directory, temporary_name, write_temporary
from jobsight.util.urls import without_credentials

#: Seconds for an S3 service.
_CONNECT_TIMEOUT = 10
_REQUEST_TIMEOUT = 60
_MAX_ATTEMPTS = 3
_CHUNK_SIZE = 1 << 23


class ArchiveError(StoreError):
    """The archive cannot be read or written."""


class Storage:
    """The files of one archive by relative name. A file appears completely or not at all."""

    def __init__(self, location: str, files: fs.FileSystem, root: str) -> None:
        self.location = location
        self._files = files
        self._root = root
        self._local = isinstance(files, fs.LocalFileSystem)
        self._nameless: dict[Path, IO[bytes]] = {}

    def path(self, name: str) -> str:
        """The path of a file; names come from manifests, and none may lead out of the archive."""
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise ArchiveError(f"the archive {self.location} refers to {name!r} outside of it")
        return f"{self._root}/{name}"

    def temporary(self, name: str) -> Path:
        """A local path for a file until :meth:`put` publishes it."""
        with self.explained(name):
            if not self._local:
                # Without a name: the kernel removes it when the process ends.
                file = tempfile.TemporaryFile()  # noqa: SIM115
                path = Path(f"/proc/self/fd/{file.fileno()}")
                self._nameless[path] = file
                return path
            target = Path(self.path(name))
            if not target.parent.exists():
                self._make_root()
                make_directories(target.parent, 0o750)
            temporary = temporary_name(target)
            # The library would create it with the permissions of the umask alone.
            write_temporary(temporary, b"", mode=0o640, sync=False)
            return temporary

    def put(self, temporary: Path, name: str) -> None:
        """Publish a complete file."""
        with self.explained(name):
            if self._local:
                descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                target = Path(self.path(name))
                os.replace(temporary, target)
                sync_directory(target.parent)
                return
            # The object exists once the stream is closed.
            with (
                open(temporary, "rb") as source,
                self._files.open_output_stream(self.path(name)) as stream,
            ):
                while piece := source.read(_CHUNK_SIZE):
                    stream.write(piece)
            self.discard(temporary)

    def discard(self, temporary: Path) -> None:
        """Remove the file of :meth:`temporary`, if it still exists."""
        if self._local:
            temporary.unlink(missing_ok=True)
        elif temporary in self._nameless:
            self._nameless.pop(temporary).close()

    def open(self, name: str) -> pa.NativeFile:
        """A file for random access."""
        with self.explained(name):
            return self._files.open_input_file(self.path(name))

    def names(self, directory: str) -> dict[str, int]:
        """All files below a directory with their sizes, including incomplete ones."""
        with self.explained(directory):
            selector = fs.FileSelector(self.path(directory), allow_not_found=True, recursive=True)
            start = len(self._root) + 1
            return {
                info.path[start:]: info.size
                for info in sorted(self._files.get_file_info(selector), key=lambda info: info.path)
                if info.type == fs.FileType.File
            }

    def exists(self, name: str) -> bool:
        with self.explained(name):
            info: fs.FileInfo = self._files.get_file_info(self.path(name))
            return bool(info.type == fs.FileType.File)

    def remove(self, name: str) -> None:
        with self.explained(name):
            self._files.delete_file(self.path(name))

    def prepare(self) -> None:
        """Fail early if the bucket does not exist or the directory is not writable."""
        with self.explained(""):
            if self._local:
                self._make_root()
                tempfile.TemporaryFile(dir=self._root).close()
            else:
                self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True))

    def _make_root(self) -> None:
        root = Path(self._root)
        if not root.is_dir():
            make_directories(root.parent)
            # Jobs are private to their users. The site may grant access to others.
            root.mkdir(mode=0o700)
            sync_directory(root.parent)

    @contextmanager
    def explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise ArchiveError(self._sentence(error, name)) from error

    def _sentence(self, error: Exception, name: str) -> str:
        where = f"{self.location}/{name}".rstrip("/")
        text = " ".join(str(error).split())
        number = getattr(error, "errno", None)
        if number == errno.ENOSPC:
            return f"the disk of the archive {self.location} is full: {name} was not written"
        if number in (errno.EACCES, errno.EROFS, errno.EPERM):
            return f"the archive {where} cannot be written or read: {os.strerror(number)}"
        if isinstance(error, FileNotFoundError) or number == errno.ENOENT:
            return f"the archive has no {where}"
        if isinstance(error, (pa.ArrowInvalid, pa.ArrowNotImplementedError)):
            return f"{where} is damaged: {text}"
        for code, sentence in _S3_ERRORS:
            if code in text:
                return f"the archive {self.location}: {sentence}"
        if isinstance(error, OSError) and error.strerror and "AWS" not in text:
            return f"the archive {where}: {' '.join(error.strerror.split())}"
        return f"the archive {where}: {text}"


_S3_ERRORS = (
    ("NO_SUCH_BUCKET", "there is no such bucket"),
    ("NETWORK_CONNECTION", "the service is unreachable; check archive.s3.endpoint"),
    ("ACCESS_DENIED", "the service refuses these credentials"),
    ("INVALID_ACCESS_KEY_ID", "the service does not know this access key"),
    ("SIGNATURE_DOES_NOT_MATCH", "the secret key does not match the access key"),
    ("InvalidAccessKeyId", "the service does not know this access key"),
    ("SignatureDoesNotMatch", "the secret key does not match the access key"),
    ("Unable to parse ExceptionName", "the reply of the service is not S3"),
)


def open_storage(settings: ArchiveSettings) -> Storage:
    """The archive of the settings."""
    location = settings.location
    if location is None:
        raise ConfigError(
            "there is no archive: set archive.location to a directory or to s3://bucket/prefix"
        )
    location = location.rstrip("/")
    if location.startswith("s3://"):
        root = location.removeprefix("s3://")
        if not root.partition("/")[0]:
            raise ConfigError("archive.location: expected s3://bucket/prefix")
        return Storage(location, _service(settings.s3), root)
    if "://" in location:
        raise ConfigError(
            f"archive.location {without_credentials(location)!r}: "
            "expected a directory or s3://bucket/prefix"
        )
    directory = str(Path(location).expanduser().absolute())
    return Storage(directory, fs.LocalFileSystem(), directory)


def _service(settings: S3Settings) -> fs.S3FileSystem:
    options: dict[str, object] = {}
    if settings.access_key is not None or settings.secret_key_file is not None:
        if settings.access_key is None or settings.secret_key_file is None:
            raise ConfigError("archive.s3: access_key and secret_key_file must be set together")
        options["access_key"] = settings.access_key
        options["secret_key"] = _secret(settings.secret_key_file)
    if settings.endpoint is not None:
        scheme, separator, host = settings.endpoint.partition("://")
        if not separator or scheme not in ("http", "https") or not host:
            raise ConfigError(
                f"archive.s3.endpoint {without_credentials(settings.endpoint)!r}: "
                "expected https://host:port"
            )
        options |= {"endpoint_override": host.rstrip("/"), "scheme": scheme}
    if settings.region is not None:
        options["region"] = settings.region
    try:
        return fs.S3FileSystem(
            connect_timeout=_CONNECT_TIMEOUT,
            request_timeout=_REQUEST_TIMEOUT,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_MAX_ATTEMPTS),
            **options,
        )
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ConfigError(f"archive.s3: {' '.join(str(error).split())}") from None


def _secret(file: str) -> str:
    try:
        return Path(file).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        raise ConfigError(f"archive.s3.secret_key_file {file}: {reason}") from None


def digest_of(source: pa.NativeFile | Path) -> str:
    """The digest of a file's content."""
    digest = hashlib.blake2b(digest_size=16)
    with open(source, "rb") if isinstance(source, Path) else source as stream:
        while piece := stream.read(_CHUNK_SIZE):
            digest.update(piece)
    return digest.hexdigest()


#: Rows of the small tables in one row group.
_ROW_GROUP_SIZE = 10_000
_COMPRESSION_LEVEL = 9


class FileEntry(msgspec.Struct):
    """A file in the manifest of a part."""

    name: str
    rows: int
    size: int
    digest: str


class TableFile:
    """A file of one table; rows are collected into row groups."""

    def __init__(self, storage: Storage, name: str, schema: pa.Schema) -> None:
        self.name = name
        self.schema = schema
        self.rows = 0
        self._storage = storage
        self._waiting: list[dict[str, Any]] = []
        self._temporary = storage.temporary(name)
        encodings = _encodings(schema)
        with storage.explained(name):
            self._writer = pq.ParquetWriter(
                str(self._temporary),
                schema,
                compression="zstd",
                compression_level=_COMPRESSION_LEVEL,
                use_dictionary=[field for field in schema.names if field not in encodings],
                column_encoding=encodings or None,
                write_page_checksum=True,
            )

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Add rows to the next row group."""
        self._waiting += rows
        if len(self._waiting) >= _ROW_GROUP_SIZE:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            rows, self._waiting = self._waiting, []
            self.write(to_table(rows, self.schema))

    def write(self, table: pa.Table) -> None:
        """Write one row group."""
        with self._storage.explained(self.name):
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self.rows += table.num_rows

    def put(self, *, digest_in_name: bool = False) -> FileEntry:
        """Complete and publish the file."""
        self.flush()
        with self._storage.explained(self.name):
            self._writer.close()
            digest = digest_of(self._temporary)
            size = self._temporary.stat().st_size
            if digest_in_name:
                self.name = self.name.replace(".parquet", f"-{digest}.parquet")
            self._storage.put(self._temporary, self.name)
        return FileEntry(self.name, self.rows, size, digest)

    def size(self) -> int:
        """Bytes written so far."""
        return self._temporary.stat().st_size

    def drop(self) -> None:
        """Remove a file that was not published."""
        # A full disk fails here again.
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        self._storage.discard(self._temporary)


def _encodings(schema: pa.Schema) -> dict[str, str]:
    """Encodings of times and time series, for which dictionaries are useless."""
    metrics = columns_of(schema)
    encodings = {"time": "DELTA_BINARY_PACKED"} if "time" in schema.names else {}
    for metric, column in metrics.items():
        integer = metric.kind == INTEGER
        encodings[column] = "DELTA_BINARY_PACKED" if integer else "BYTE_STREAM_SPLIT"
    return encodings


class SeriesFiles:
    """The time series of a part. A new metric starts another file."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._files: list[TableFile] = []
        self._waiting: list[Segment] = []
        self._waiting_rows = 0
        #: Of the waiting segments, and of the open file.
        self._metrics: set[Metric] = set()
        self._columns: set[Metric] = set()

    def add(self, segment: Segment) -> None:
        for piece in pieces(segment):
            metrics = {Metric(*item) for item in metrics_of(piece.block).items()}
            rows = self._waiting_rows + len(piece.block.times)
            union = self._metrics | metrics
            if rows * len(union) > GROUP_VALUES or len(union) > MAX_METRICS:
                self.flush()
            self._waiting.append(piece)
            self._waiting_rows += len(piece.block.times)
            self._metrics |= metrics

    def flush(self) -> None:
        """Write the waiting segments as one row group."""
        if not self._waiting and self._files:
            return
        if not self._files or not self._metrics <= self._columns:
            union = self._columns | self._metrics
            self._columns = union if len(union) <= MAX_METRICS else self._metrics
            name = self._name.replace(".parquet", f"-{len(self._files)}.parquet")
            self._files.append(TableFile(self._storage, name, wide_schema(self._columns)))
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
