"""The trees of the aggregator: records that came, those that were booked, those that were refused.

A file is moved by one rename, so at every moment it is whole and in one of the trees.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from jobsight.agent.outputs.record import with_start
from jobsight.errors import JobsightError
from jobsight.model import format_start
from jobsight.sams.record import RecordError
from jobsight.sams.settings import LoaderSettings

logger = logging.getLogger("jobsight.sams")

LOCK: Final = ".sams-aggregator.lock"
REASON: Final = ".reason"
#: Nothing that follows a link, waits for a writer or changes the file.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_HELD_OPEN: Final = 64


class RecordFile(NamedTuple):
    """A file below the folder of incoming records."""

    #: The subfolder, "" for none; it is kept in the other trees.
    folder: str
    name: str

    def __str__(self) -> str:
        return os.path.join(self.folder, self.name)


class _Folders:
    """Subfolders of a tree, held open.

    A name that is looked up from there spares the kernel the way through all folders above, which
    for small files is a good part of the work.
    """

    def __init__(self, root: str, *, make: bool = False) -> None:
        self._root = root
        self._make = make
        self._descriptors: dict[str, int] = {}

    def descriptor(self, folder: str) -> int:
        """The subfolder, "" for the root; good until many others were asked for."""
        known = self._descriptors.get(folder)
        if known is None:
            path = os.path.join(self._root, folder)
            if self._make:
                os.makedirs(path, exist_ok=True)
            if len(self._descriptors) >= _HELD_OPEN:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            known = self._descriptors[folder] = os.open(path, _FOLDER)
        return known

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)


class Inbox:
    """The three trees of one loader."""

    def __init__(self, settings: LoaderSettings) -> None:
        self._in = str(settings.in_path)
        self._archive = str(settings.archive_path)
        self._error = str(settings.error_path)
        self._pattern = settings.pattern
        self._max_size = settings.max_size
        self._sources = _Folders(self._in)
        self._archives = _Folders(self._archive, make=True)

    @property
    def lock(self) -> Path:
        """The name of the file that keeps a second aggregator out."""
        if not os.path.isdir(self._in):
            raise JobsightError(f"the folder of incoming records {self._in} is not there")
        return Path(self._in, LOCK)

    def files(self) -> list[RecordFile]:
        """What waits now, records of one job beside each other."""
        found = [file for file in self._walk("") if self._pattern.match(file.name)]
        found.sort(key=lambda file: (_leading_number(file.name), file))
        return found

    def _walk(self, folder: str) -> Iterator[RecordFile]:
        others = {os.path.realpath(self._archive), os.path.realpath(self._error)}
        try:
            entries = list(os.scandir(os.path.join(self._in, folder)))
        except OSError as error:
            logger.error("%s: cannot be read: %s", os.path.join(self._in, folder), error.strerror)
            return
        for entry in entries:
            # A name that begins with a dot is one that somebody is still writing.
            if entry.name.startswith("."):
                continue
            if entry.is_file(follow_symlinks=False):
                yield RecordFile(folder, entry.name)
            elif entry.is_dir(follow_symlinks=False):
                if os.path.realpath(entry.path) not in others:
                    yield from self._walk(os.path.join(folder, entry.name))
            else:
                logger.warning("%s: is not a plain file and stays where it is", entry.path)

    def read(self, file: RecordFile) -> bytes | None:
        """The file's bytes, None where it is gone; :class:`RecordError` where it is no record."""
        try:
            folder = self._sources.descriptor(file.folder)
            descriptor = os.open(file.name, _READ, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RecordError(f"the file cannot be read: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RecordError("the file is not a plain file")
            if status.st_size > self._max_size:
                raise RecordError(
                    f"the file has {status.st_size} bytes; {self._max_size} are allowed (max_size)"
                )
            data = os.read(descriptor, status.st_size + 1)
            # Shorter by one than what was asked for is the whole file.
            while len(data) != status.st_size and len(data) <= self._max_size:
                more = os.read(descriptor, 2**20)
                if not more:
                    break
                data += more
        except OSError as error:
            raise RecordError(f"the file cannot be read: {error.strerror}") from None
        finally:
            os.close(descriptor)
        if not data:
            raise RecordError("the file is empty")
        return data

    def archive(self, file: RecordFile, start: int, changed: bytes | None = None) -> None:
        """Move a booked file; ``changed`` is what it became by the answer of sacct."""
        if changed is None and self._moved(file):
            return
        source = os.path.join(self._in, file.folder, file.name)
        target = self._target(self._archive, file)
        if os.path.lexists(target):
            target = _beside(target, source if changed is None else changed, start)
        if changed is None:
            _move(source, target)
        else:
            _write(target, changed)
            os.unlink(source)

    def _moved(self, file: RecordFile) -> bool:
        """Move a file under its own name; False where that takes more than one step."""
        source = self._sources.descriptor(file.folder)
        archive = self._archives.descriptor(file.folder)
        if os.access(file.name, os.F_OK, dir_fd=archive, follow_symlinks=False):
            return False
        try:
            os.rename(file.name, file.name, src_dir_fd=source, dst_dir_fd=archive)
        except OSError:
            # It is tried again by the whole names, which an error then has.
            return False
        return True

    def refuse(self, file: RecordFile, reason: str) -> None:
        """Move a file that cannot be booked, with the reason beside it."""
        logger.error("%s: %s", os.path.join(self._in, str(file)), reason)
        source = os.path.join(self._in, file.folder, file.name)
        target = self._target(self._error, file)
        number = 1
        while os.path.lexists(target):
            if _same(target, source):
                break
            number += 1
            target = self._target(self._error, file._replace(name=f"{file.name}.{number}"))
        # First the reason: a file without one would be a riddle.
        _write(target + REASON, f"{reason}\n".encode("utf-8", "backslashreplace"))
        try:
            _move(source, target)
        except FileNotFoundError:
            os.unlink(target + REASON)

    def _target(self, tree: str, file: RecordFile) -> str:
        folder = os.path.join(tree, file.folder)
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, file.name)


def _leading_number(name: str) -> int:
    digits = re.match(r"\d{1,18}", name, re.ASCII)
    return int(digits[0]) if digits else -1


def _beside(target: str, source: str | bytes, start: int) -> str:
    """A name that overwrites no other record: a requeued job's file has the same name again."""
    number = 0
    name = target
    while os.path.lexists(name) and not _same(name, source):
        number += 1
        name = with_start(target, format_start(start), number)
    return name


def _same(file: str, other: str | bytes) -> bool:
    try:
        if isinstance(other, str):
            other = Path(other).read_bytes()
        return os.path.getsize(file) == len(other) and Path(file).read_bytes() == other
    except OSError:
        return False


def _move(source: str, target: str) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # Another file system: whole under a name that nobody takes, then the real name.
        folder, name = os.path.split(target)
        copy = os.path.join(folder, f".{name[:200]}.new")
        shutil.copy2(source, copy, follow_symlinks=False)
        _sync(copy)
        os.rename(copy, target)
        os.unlink(source)


def _write(target: str, data: bytes) -> None:
    folder, name = os.path.split(target)
    copy = os.path.join(folder, f".{name[:200]}.new")
    with open(copy, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(copy, target)


def _sync(file: str) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
