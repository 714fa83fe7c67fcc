"""The directory trees of the aggregator: incoming records, archived ones, and refused ones.

A file is moved by one rename, so it is always complete and in exactly one of the trees. Users may
write into the incoming tree and exchange what is there at any moment, so files are read and moved
by the descriptors of their directories, and no symbolic link is followed.
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

from jobsight.agent.outputs.sams_record import with_start
from jobsight.errors import JobsightError
from jobsight.model import format_start
from jobsight.sams.record import RecordError
from jobsight.sams.settings import LoaderSettings
from jobsight.util.directories import in_directory, open_below
from jobsight.util.durable import temporary_name, write_atomically

logger = logging.getLogger(__name__)

LOCK: Final = ".sams-aggregator.lock"
REASON: Final = ".reason"
#: Follows no symbolic link and waits for no writer of a FIFO.
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_OPEN: Final = 64


class RecordFile(NamedTuple):
    """A file below the incoming directory."""

    #: The subdirectory, "" for none; it is the same in the other trees.
    directory: str
    name: str

    def __str__(self) -> str:
        return os.path.join(self.directory, self.name)


class _Directories:
    """Open descriptors of the directories of a tree.

    The lookup of a name relative to its directory saves the walk through all parents, a good part
    of the work for small files.
    """

    def __init__(self, root: str, *, make: bool = False) -> None:
        self._root = root
        self._make = make
        self._descriptors: dict[str, int] = {}

    def descriptor(self, directory: str) -> int:
        """The descriptor of a subdirectory, "" for the root; valid until many others are opened."""
        descriptor = self._descriptors.get(directory)
        if descriptor is None:
            if self._make:
                os.makedirs(self._root, exist_ok=True)
            if len(self._descriptors) >= _MAX_OPEN:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            descriptor = open_below(self._root, directory, make=self._make)
            self._descriptors[directory] = descriptor
        return descriptor

    def path(self, file: RecordFile, name: str | None = None) -> str:
        """The path of a file by the descriptor of its directory."""
        return str(in_directory(self.descriptor(file.directory), name or file.name))

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
        self._sources = _Directories(self._in)
        self._archives = _Directories(self._archive, make=True)
        self._errors = _Directories(self._error, make=True)

    @property
    def lock(self) -> Path:
        """The lock file against a second aggregator."""
        if not os.path.isdir(self._in):
            raise JobsightError(f"the incoming directory {self._in} does not exist")
        return Path(self._in, LOCK)

    def files(self) -> list[RecordFile]:
        """All incoming files, sorted by job id."""
        files = [file for file in self._walk("") if self._pattern.match(file.name)]
        files.sort(key=lambda file: (_leading_number(file.name), file))
        return files

    def _walk(self, directory: str) -> Iterator[RecordFile]:
        others = {_identity(self._archive), _identity(self._error)}
        try:
            with os.scandir(self._sources.descriptor(directory)) as iterator:
                entries = list(iterator)
        except OSError as error:
            path = os.path.join(self._in, directory)
            logger.error("%s: cannot be read: %s", path, error.strerror)
            return
        for entry in entries:
            # A name that begins with a dot is incomplete.
            if entry.name.startswith("."):
                continue
            path = os.path.join(directory, entry.name)
            if entry.is_file(follow_symlinks=False):
                yield RecordFile(directory, entry.name)
            elif entry.is_dir(follow_symlinks=False):
                if _identity(os.path.join(self._in, path)) not in others:
                    yield from self._walk(path)
            else:
                logger.warning(
                    "%s: is not a regular file and is left there", os.path.join(self._in, path)
                )

    def read(self, file: RecordFile) -> bytes | None:
        """The content of a file; None if it no longer exists."""
        try:
            directory = self._sources.descriptor(file.directory)
        except (FileNotFoundError, NotADirectoryError):
            # Its directory was removed or exchanged since it was listed.
            return None
        try:
            descriptor = os.open(file.name, _READ_FLAGS, dir_fd=directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RecordError(f"the file cannot be read: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RecordError("the file is not a regular file")
            if status.st_size > self._max_size:
                raise RecordError(
                    f"the file has {status.st_size} bytes; max_size is {self._max_size}"
                )
            data = os.read(descriptor, status.st_size + 1)
            # One byte less than requested is the complete file.
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
        """Move a stored file; ``changed`` is its content as completed by sacct."""
        if changed is None and self._rename(file):
            return
        source, target = self._sources.path(file), self._archives.path(file)
        if os.path.lexists(target):
            target = _free_name(target, source if changed is None else changed, start)
        if changed is None:
            _move(source, target)
        else:
            write_atomically(Path(target), changed)
            os.unlink(source)

    def _rename(self, file: RecordFile) -> bool:
        """Move a file under its own name; False if that needs more than one step."""
        source = self._sources.descriptor(file.directory)
        archive = self._archives.descriptor(file.directory)
        if os.access(file.name, os.F_OK, dir_fd=archive, follow_symlinks=False):
            return False
        try:
            os.rename(file.name, file.name, src_dir_fd=source, dst_dir_fd=archive)
        except OSError:
            # Such as another file system.
            return False
        return True

    def refuse(self, file: RecordFile, reason: str) -> None:
        """Move a file that cannot be stored, and write the reason next to it."""
        logger.error("%s: %s", os.path.join(self._in, str(file)), reason)
        source, target = self._sources.path(file), self._errors.path(file)
        number = 1
        while os.path.lexists(target):
            if _same(target, source):
                break
            number += 1
            target = self._errors.path(file, f"{file.name}.{number}")
        # The reason first, so that no refused file is without one.
        sentence = f"{reason}\n".encode("utf-8", "backslashreplace")
        write_atomically(Path(target + REASON), sentence)
        try:
            _move(source, target)
        except FileNotFoundError:
            os.unlink(target + REASON)


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of a directory; None if there is none."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _leading_number(name: str) -> int:
    digits = re.match(r"\d{1,18}", name, re.ASCII)
    return int(digits[0]) if digits else -1


def _free_name(target: str, source: str | bytes, start: int) -> str:
    """A name that replaces no other record: a requeued job's file has the same name."""
    number = 0
    name = target
    while os.path.lexists(name) and not _same(name, source):
        number += 1
        name = with_start(target, format_start(start), number)
    return name


def _same(file: str, other: str | bytes) -> bool:
    try:
        if isinstance(other, str):
            if not stat.S_ISREG(os.stat(other, follow_symlinks=False).st_mode):
                return False
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
        # Another file system: copied under a temporary name, which no reader accepts.
        temporary = temporary_name(Path(target))
        shutil.copy2(source, temporary, follow_symlinks=False)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, target)
        os.unlink(source)
