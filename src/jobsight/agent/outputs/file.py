"""``sams.output.File``: the record of a job as a file, for the aggregator of SAMS or jobsight."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, ClassVar, Final

import msgspec

from jobsight.agent.job import Document, JobView
from jobsight.agent.outputs.mapping import check_template
from jobsight.agent.outputs.record_spool import RecordKey, RecordSpool, record_key
from jobsight.agent.outputs.sams_record import Record, encode_record, safe_part, with_start
from jobsight.config import paths
from jobsight.errors import ConfigError
from jobsight.util.directories import in_directory, open_below
from jobsight.util.durable import (
    make_directories,
    place_new,
    sync_directory,
    temporary_name,
    write_temporary,
)

#: Records of one run in one directory; more of them mean a fault.
_MAX_RECORDS: Final = 1000
#: setfsuid(2) fails for this uid and returns the current one.
_INVALID_UID: Final = 0xFFFFFFFF


class FileOptions(msgspec.Struct, kw_only=True):
    base_path: str = "/tmp"
    file_pattern: str = "%(jobid)s.%(node)s.json"
    #: Jobs per subdirectory; 0 and none mean no subdirectories.
    jobid_hash_size: Annotated[int, msgspec.Meta(ge=0)] | None = None
    exclude: list[str] = msgspec.field(default_factory=list)
    write_as_uid: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 2)] | None = None
    #: The directory of records that could not be written; "" discards them.
    spool: str = msgspec.field(default_factory=lambda: str(paths.spool_directory() / "file"))

    def __post_init__(self) -> None:
        check_template("file_pattern", self.file_pattern, {"jobid": 1, "node": "n", "start": "t"})
        if re.search(r"(^|/)\.\.(/|$)", self.file_pattern) or self.file_pattern.startswith("/"):
            raise ConfigError("file_pattern: leads out of base_path; expected a name below it")


class FileOutput:
    """Writes one record when the job ends, and never overwrites the record of another run."""

    Options: ClassVar[type[msgspec.Struct]] = FileOptions

    def __init__(self, options: FileOptions, view: JobView, name: str = "sams.output.File") -> None:
        self.name = name
        self.options = options
        self._record = Record(options.exclude)
        self._spool = RecordSpool(Path(options.spool)) if options.spool else None
        #: The file of the last record, once it is written.
        self.written: Path | None = None

    @property
    def dropped_records(self) -> int:
        """Records of other jobs that were deleted to keep this one."""
        return 0 if self._spool is None else self._spool.dropped

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        self._record.store(sampler, document)

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        body = encode_record(self._record.finished(documents))
        self.written = self._write_file(record_key(view), body)
        if self._spool is not None:
            # Records of earlier jobs, now that files can be written.
            self._spool.deliver(self._write_file)

    def save(self, view: JobView, documents: dict[str, Document]) -> str | None:
        """Store a record that could not be written on the node's disk; returns its path."""
        if self._spool is None:
            return None
        body = encode_record(self._record.finished(documents))
        return str(self._spool.directory / self._spool.put(record_key(view), body))

    def _write_file(self, key: RecordKey, body: bytes) -> Path:
        names = {
            "jobid": key.job_id,
            "node": safe_part(key.node),
            "start": key.start,
        }
        size = self.options.jobid_hash_size
        below = str(key.job_id // size) if size else ""
        path = Path(self.options.base_path, below, self.options.file_pattern % names)
        with writing_as(self.options.write_as_uid):
            base = Path(self.options.base_path)
            make_directories(base)
            owners = {0, current_fsuid(), base.stat().st_uid}
            directory = open_below(
                str(base), str(path.parent.relative_to(base)), make=True, owners=owners
            )
            try:
                held = in_directory(directory, path.name)
                temporary = temporary_name(held, safe_part(key.node))
                write_temporary(temporary, body, mode=0o666)
                name = _place_unique(temporary, held, key).name
                sync_directory(in_directory(directory, "."))
            finally:
                os.close(directory)
        return path.with_name(name)

    def close(self) -> None:
        pass


def _place_unique(temporary: Path, first: Path, key: RecordKey) -> Path:
    """Rename the file to the first free name.

    A requeued run leaves the plain name to the first run even if the aggregator has moved that
    file: its archive distinguishes records by name only.
    """
    if not key.requeued and place_new(temporary, first):
        return first
    for number in range(1, _MAX_RECORDS):
        path = first.with_name(with_start(first.name, key.start, number))
        if place_new(temporary, path):
            return path
    temporary.unlink(missing_ok=True)
    raise FileExistsError(f"the directory holds {_MAX_RECORDS} records of this run already")


@contextmanager
def writing_as(uid: int | None) -> Iterator[None]:
    """Create and open files as a user in this thread only.

    This is for file systems that map root to nobody (NFS root squash). setfsuid(2) does not
    report success, so the effective uid is checked afterwards.
    """
    if uid is None:
        yield
        return
    before = _set_fsuid(uid)
    try:
        if current_fsuid() != uid:
            raise PermissionError(errno.EPERM, f"files cannot be written as user {uid}")
        yield
    finally:
        _set_fsuid(before)
        if current_fsuid() != before:
            # Nothing may continue with the wrong identity.
            os.abort()


def current_fsuid() -> int:
    return _set_fsuid(_INVALID_UID)


def _set_fsuid(uid: int) -> int:
    """Call setfsuid(2), which returns the previous uid."""
    library = ctypes.CDLL(None, use_errno=True)
    library.setfsuid.argtypes = [ctypes.c_uint32]
    library.setfsuid.restype = ctypes.c_int
    return int(library.setfsuid(uid)) & 0xFFFFFFFF
