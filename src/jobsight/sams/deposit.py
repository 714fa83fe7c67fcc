"""Puts a record that came over HTTP into the folder of incoming records, whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Final

from jobsight.agent.outputs.record import with_start
from jobsight.errors import JobsightError
from jobsight.model import format_start
from jobsight.sams.booking import interval_of
from jobsight.sams.record import RecordError, SamsRecord, parse_record

#: Bytes of a file's name; a start may be added, and file systems end at 255.
_MAX_NAME: Final = 220
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: SAMS's documentation puts the job's hash, by this size, where the receiver has the job id.
_DOCUMENTED_HASH: Final = 1000


class RefusedPost(JobsightError):
    """A post that will never be taken; the text says why."""


class Deposit:
    """One folder, with or without subfolders by job id."""

    def __init__(self, base: Path, hash_size: int = 0) -> None:
        self._base = base
        self._hash_size = hash_size

    def check_name(self, name: str) -> None:
        """Raise :class:`RefusedPost` for a name that is none of a record's."""
        if _CONTROL.search(name):
            raise RefusedPost(f"the file name {name[:80]!r} has characters that do not print")
        if "/" in name or "\\" in name:
            raise RefusedPost(f"the file name {name[:80]!r} leads out of the folder")
        if not name or name.startswith("."):
            raise RefusedPost(f"the file name {name[:80]!r} is hidden: it begins with a dot")
        if len(name.encode()) > _MAX_NAME:
            raise RefusedPost(f"the file name is longer than {_MAX_NAME} bytes")

    def check_body(self, job_id: int, data: bytes) -> SamsRecord:
        """Raise :class:`RefusedPost` where the body is no record of this job."""
        try:
            record = parse_record(data)
        except RecordError as error:
            raise RefusedPost(str(error)) from None
        sizes = {1, _DOCUMENTED_HASH, self._hash_size or 1}
        if job_id not in {record.job_id // size for size in sizes}:
            raise RefusedPost(
                f"the record is of job {record.job_id}, but it was posted for job {job_id}"
            )
        return record

    def keep(self, name: str, record: SamsRecord, data: bytes) -> str:
        """Write the record; gives the name it has. OSError leaves nothing behind."""
        folder = self._base
        if self._hash_size:
            folder = folder / str(record.job_id // self._hash_size)
        folder.mkdir(parents=True, exist_ok=True)
        # A name of its own for each post: two posts of one file must not write into one another.
        new = folder / f".{secrets.token_hex(8)}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            kept = self._name(folder, new, name, record, data)
        finally:
            new.unlink(missing_ok=True)
        _sync(folder)
        return kept

    def _name(self, folder: Path, new: Path, name: str, record: SamsRecord, data: bytes) -> str:
        """Give the file its name. One that is there stays: a requeued job's has the same name."""
        number = 0
        wanted = name
        while True:
            target = folder / wanted
            try:
                os.link(new, target, follow_symlinks=False)
            except FileExistsError:
                if _holds(target, data):
                    return wanted
            else:
                return wanted
            number += 1
            wanted = with_start(name, _start(record), number)


def _start(record: SamsRecord) -> str:
    try:
        return format_start(interval_of(record).start)
    except RecordError:
        return "unknown"


def _holds(file: Path, data: bytes) -> bool:
    try:
        return file.stat().st_size == len(data) and file.read_bytes() == data
    except OSError:
        return False


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
