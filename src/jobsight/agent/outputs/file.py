"""``sams.output.File``: the record of a job as a file, for SAMS's aggregator or ours.

Files written as another user, for file systems where root is nobody (NFS root squash).
"""

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
from jobsight.agent.outputs.http import Address, HttpSpool, address_of
from jobsight.agent.outputs.mapping import check_template
from jobsight.agent.outputs.record import Record, encode_record, safe_part, with_start
from jobsight.config import paths
from jobsight.errors import ConfigError
from jobsight.util.durable import (
    make_directories,
    place_new,
    sync_directory,
    temporary_name,
    write_temporary,
)

#: So many records of one run can lie beside each other before something is clearly wrong.
_MOST = 1000


class FileOptions(msgspec.Struct, kw_only=True):
    base_path: str = "/tmp"
    file_pattern: str = "%(jobid)s.%(node)s.json"
    #: Jobs in one subfolder; 0 means no subfolders, as none does.
    jobid_hash_size: Annotated[int, msgspec.Meta(ge=0)] | None = None
    exclude: list[str] = msgspec.field(default_factory=list)
    write_as_uid: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 2)] | None = None
    #: Where a record waits that could not be written; "" gives it up instead.
    spool: str = msgspec.field(default_factory=lambda: str(paths.spool_directory() / "file"))

    def __post_init__(self) -> None:
        check_template("file_pattern", self.file_pattern, {"jobid": 1, "node": "n", "start": "t"})
        if re.search(r"(^|/)\.\.(/|$)", self.file_pattern) or self.file_pattern.startswith("/"):
            raise ConfigError("file_pattern: leads out of base_path; right: a name below it")


class FileOutput:
    """Writes one record when the job ends. It never writes over another run's record."""

    Options: ClassVar[type[msgspec.Struct]] = FileOptions

    def __init__(self, options: FileOptions, view: JobView, name: str = "sams.output.File") -> None:
        self.name = name
        self.options = options
        self._record = Record(options.exclude)
        self._kept = HttpSpool(Path(options.spool)) if options.spool else None
        #: The file of the last record, once it is there.
        self.written: Path | None = None

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        self._record.store(sampler, document)

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        body = encode_record(self._record.finished(documents))
        self.written = self._place(address_of(view), body)
        if self._kept is not None:
            # What earlier jobs could not write has its chance now that there is room.
            self._kept.deliver(self._place)

    def keep(self, view: JobView, documents: dict[str, Document]) -> str | None:
        """The last resort after the last attempt: the node's own disk. Gives the place."""
        if self._kept is None:
            return None
        body = encode_record(self._record.finished(documents))
        return str(self._kept.folder / self._kept.put(address_of(view), body))

    def _place(self, address: Address, body: bytes) -> Path:
        names = {
            "jobid": address.job_id,
            "node": safe_part(address.node),
            "start": address.start,
        }
        first = self._folder(address.job_id) / (self.options.file_pattern % names)
        with writing_as(self.options.write_as_uid):
            make_directories(first.parent)
            temporary = temporary_name(first, safe_part(address.node))
            write_temporary(temporary, body, mode=0o666)
            placed = _place_beside(temporary, first, address)
            sync_directory(placed.parent)
        return placed

    def _folder(self, job_id: int) -> Path:
        base = Path(self.options.base_path)
        size = self.options.jobid_hash_size
        return base / str(job_id // size) if size else base

    def close(self) -> None:
        pass


def _place_beside(temporary: Path, first: Path, address: Address) -> Path:
    """Take the first free name. A requeued run leaves the plain name to the first run even when
    the aggregator has taken that file away: its archive knows names only."""
    if not address.requeued and place_new(temporary, first):
        return first
    for number in range(1, _MOST):
        path = first.with_name(with_start(first.name, address.start, number))
        if place_new(temporary, path):
            return path
    temporary.unlink(missing_ok=True)
    raise FileExistsError(f"{first.parent} holds {_MOST} records of this run already")


#: No user has this number; the kernel refuses it and answers with the one in force.
_NOBODY_AT_ALL: Final = 0xFFFFFFFF


def _set(uid: int) -> int:
    """setfsuid(2): gives the number that was in force before, and says nothing of success."""
    library = ctypes.CDLL(None, use_errno=True)
    library.setfsuid.argtypes = [ctypes.c_uint32]
    library.setfsuid.restype = ctypes.c_int
    return int(library.setfsuid(uid)) & 0xFFFFFFFF


def current_fsuid() -> int:
    return _set(_NOBODY_AT_ALL)


@contextmanager
def writing_as(uid: int | None) -> Iterator[None]:
    """Let this thread, and no other, create and open files as a user.

    The call has no return code, so it is asked afterwards who the kernel takes us for.
    """
    if uid is None:
        yield
        return
    before = _set(uid)
    try:
        if current_fsuid() != uid:
            raise PermissionError(errno.EPERM, f"files cannot be written as user {uid}")
        yield
    finally:
        _set(before)
        if current_fsuid() != before:
            # Nothing may go on with the wrong identity.
            os.abort()
