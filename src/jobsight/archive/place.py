"""Where an archive lies: a folder, or an address of a service that speaks S3."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
from pyarrow import fs

from jobsight.config.settings import ArchiveSettings, S3Settings
from jobsight.errors import ConfigError, StoreError
from jobsight.util.durable import make_directories, sync_directory, temporary_name

#: Seconds in which a service must answer.
_CONNECT_TIMEOUT = 10
_REQUEST_TIMEOUT = 60
_ATTEMPTS = 3
_PIECE = 1 << 23


class ArchiveError(StoreError):
    """The archive cannot be read or written."""


class Place:
    """The files of one archive, by names relative to it. A file appears whole or not at all."""

    def __init__(self, location: str, files: fs.FileSystem, root: str) -> None:
        self.location = location
        self._files = files
        self._root = root
        self._local = isinstance(files, fs.LocalFileSystem)
        self._nameless: dict[Path, IO[bytes]] = {}

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def temporary(self, name: str) -> Path:
        """Where a file may be written at leisure, on a local disk, until :meth:`put` takes it."""
        with self.explained(name):
            if not self._local:
                # Without a name: it goes with the process, whatever way that ends.
                file = tempfile.TemporaryFile()  # noqa: SIM115
                path = Path(f"/proc/self/fd/{file.fileno()}")
                self._nameless[path] = file
                return path
            target = Path(self.path(name))
            if not target.parent.exists():
                self._make_root()
                make_directories(target.parent)
            return temporary_name(target)

    def put(self, temporary: Path, name: str) -> None:
        """Give a finished file its name."""
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
            # The object exists once the last byte is there and the stream is closed.
            with (
                open(temporary, "rb") as source,
                self._files.open_output_stream(self.path(name)) as stream,
            ):
                while piece := source.read(_PIECE):
                    stream.write(piece)
            self.discard(temporary)

    def discard(self, temporary: Path) -> None:
        """Forget what :meth:`temporary` gave, where it is still there."""
        if self._local:
            temporary.unlink(missing_ok=True)
        elif temporary in self._nameless:
            self._nameless.pop(temporary).close()

    def open(self, name: str) -> pa.NativeFile:
        """A file to read from any place of it."""
        with self.explained(name):
            return self._files.open_input_file(self.path(name))

    def names(self, folder: str) -> dict[str, int]:
        """All files below a folder with their sizes, unfinished ones too."""
        with self.explained(folder):
            selector = fs.FileSelector(self.path(folder), allow_not_found=True, recursive=True)
            start = len(self._root) + 1
            return {
                found.path[start:]: found.size
                for found in sorted(self._files.get_file_info(selector), key=lambda one: one.path)
                if found.type == fs.FileType.File
            }

    def exists(self, name: str) -> bool:
        with self.explained(name):
            found: fs.FileInfo = self._files.get_file_info(self.path(name))
            return bool(found.type == fs.FileType.File)

    def remove(self, name: str) -> None:
        with self.explained(name):
            self._files.delete_file(self.path(name))

    def prepare(self) -> None:
        """Say now what would go wrong later: no such bucket, no right to write."""
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
            # Jobs are their users' own business. Who may read the archive is the site's choice.
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
        for sign, words in _S3_SIGNS:
            if sign in text:
                return f"the archive {self.location}: {words}"
        if isinstance(error, OSError) and error.strerror and "AWS" not in text:
            return f"the archive {where}: {' '.join(error.strerror.split())}"
        return f"the archive {where}: {text}"


_S3_SIGNS = (
    ("NO_SUCH_BUCKET", "there is no such bucket"),
    ("NETWORK_CONNECTION", "the service cannot be reached; look at archive.s3.endpoint"),
    ("ACCESS_DENIED", "the service refuses these credentials"),
    ("INVALID_ACCESS_KEY_ID", "the service does not know this access key"),
    ("SIGNATURE_DOES_NOT_MATCH", "the secret key does not fit the access key"),
    ("InvalidAccessKeyId", "the service does not know this access key"),
    ("SignatureDoesNotMatch", "the secret key does not fit the access key"),
    ("Unable to parse ExceptionName", "the service's answer is not S3"),
)


def open_place(settings: ArchiveSettings) -> Place:
    """The archive that the settings name."""
    location = settings.location
    if location is None:
        raise ConfigError(
            "there is no archive: set archive.location to a folder or to s3://bucket/prefix"
        )
    location = location.rstrip("/")
    if location.startswith("s3://"):
        root = location.removeprefix("s3://")
        if not root.partition("/")[0]:
            raise ConfigError("archive.location: right would be s3://bucket/prefix")
        return Place(location, _service(settings.s3), root)
    if "://" in location:
        raise ConfigError(
            f"archive.location {location!r}: right would be a folder or s3://bucket/prefix"
        )
    folder = str(Path(location).expanduser().absolute())
    return Place(folder, fs.LocalFileSystem(), folder)


def _service(settings: S3Settings) -> fs.S3FileSystem:
    options: dict[str, object] = {}
    if settings.access_key is not None or settings.secret_key_file is not None:
        if settings.access_key is None or settings.secret_key_file is None:
            raise ConfigError("archive.s3: access_key and secret_key_file go together")
        options["access_key"] = settings.access_key
        options["secret_key"] = _secret(settings.secret_key_file)
    if settings.endpoint is not None:
        scheme, mark, host = settings.endpoint.partition("://")
        if not mark or scheme not in ("http", "https") or not host:
            raise ConfigError(
                f"archive.s3.endpoint {settings.endpoint!r}: right would be https://host:port"
            )
        options |= {"endpoint_override": host.rstrip("/"), "scheme": scheme}
    if settings.region is not None:
        options["region"] = settings.region
    try:
        return fs.S3FileSystem(
            connect_timeout=_CONNECT_TIMEOUT,
            request_timeout=_REQUEST_TIMEOUT,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
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
    """What a file's bytes come down to."""
    digest = hashlib.blake2b(digest_size=16)
    with open(source, "rb") if isinstance(source, Path) else source as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
