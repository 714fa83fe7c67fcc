"""Which file a process runs: by its link, by the inode of its exit record, by its command name.

A program of a few milliseconds is gone before its link can be read. Its exit record still
carries device and inode, so one successful look, at any other run of the same file, names it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Final, NamedTuple

from jobsight.agent.scripts import COMMAND_LINE, SEPARATOR, is_interpreter, script_of

#: Where a command that was never caught alive is looked for, besides the folders already seen.
STANDARD_FOLDERS: Final = (
    b"/usr/bin",
    b"/bin",
    b"/usr/local/bin",
    b"/usr/sbin",
    b"/sbin",
    b"/usr/local/sbin",
)
_DELETED: Final = b" (deleted)"
#: The kernel cuts a command's name here.
_COMMAND_LENGTH: Final = 15
#: A search asks the file system once per folder, so only the latest are remembered.
_FOLDERS_LIMIT: Final = 64


class Name(NamedTuple):
    path: bytes
    known: bool
    #: Where only the command's name is known: the file that a later look may still name.
    executable: tuple[int, int] | None = None


#: A program that its own exec of the next one replaced before anybody could look.
UNKNOWN: Final = Name(b"replaced at once", known=False)


def same_file(one: Name, other: Name | None) -> bool:
    """Whether two names are of one executable, whatever script it runs."""
    return other is not None and file_of(one.path) == file_of(other.path)


def file_of(path: bytes) -> bytes:
    """The executable alone."""
    return path.partition(SEPARATOR)[0]


def kernel_device(device: int) -> int:
    """A device number the way the kernel writes it in an exit record."""
    major, minor = os.major(device), os.minor(device)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


class ImageNames:
    """Names of executables, learned from every successful look and bounded in number."""

    def __init__(self, proc: bytes = b"/proc", limit: int = 50_000) -> None:
        self.proc = proc
        #: Name what interpreters run, too; see jobsight.agent.scripts.
        self.scripts = False
        self._limit = limit
        self._by_inode: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._known_paths: dict[bytes, tuple[int, int]] = {}
        self._folders: OrderedDict[bytes, None] = OrderedDict()

    def by_link(self, pid: int) -> Name | None:
        """Read the link of a live process; None when it is gone or has no file."""
        link = b"%s/%d/exe" % (self.proc, pid)
        try:
            path = os.readlink(link)
            if path.endswith(_DELETED) and not os.path.lexists(path):
                path = path[: -len(_DELETED)]
            if path not in self._known_paths:
                found = os.stat(link)
                self._learn((kernel_device(found.st_dev), found.st_ino), path)
            if self.scripts and is_interpreter(path):
                path = self._with_script(pid, path, link)
        except OSError:
            return None
        return Name(path, known=True)

    def _with_script(self, pid: int, path: bytes, link: bytes) -> bytes:
        before = os.readlink(link)
        with open(b"%s/%d/cmdline" % (self.proc, pid), "rb", 0) as file:
            arguments = file.read(COMMAND_LINE).split(b"\0")[1:-1]
        script = script_of(path, arguments)
        # Another program that took its place between the two looks has other arguments.
        if script is None or os.readlink(link) != before:
            return path
        return path + SEPARATOR + script

    def _learn(self, inode: tuple[int, int], path: bytes) -> None:
        self._by_inode[inode] = path
        self._known_paths[path] = inode
        folder = os.path.dirname(path)
        if folder not in STANDARD_FOLDERS:
            self._folders[folder] = None
            self._folders.move_to_end(folder)
            if len(self._folders) > _FOLDERS_LIMIT:
                self._folders.popitem(last=False)
        if len(self._by_inode) > self._limit:
            _, forgotten = self._by_inode.popitem(last=False)
            self._known_paths.pop(forgotten, None)

    def look_at(self, path: bytes) -> None:
        """Learn a file that is about to be executed."""
        try:
            found = os.stat(path)
        except OSError:
            return
        self._learn((kernel_device(found.st_dev), found.st_ino), os.path.realpath(path))

    def learn(self, executable: tuple[int, int] | None, name: Name) -> None:
        """Take the inode of an exit record for a process whose link was read: on some file
        systems (overlay, btrfs) it is not the one that stat gives."""
        if executable is not None and name.known and executable not in self._by_inode:
            self._learn(executable, file_of(name.path))

    def of_inode(self, executable: tuple[int, int]) -> bytes | None:
        """The path of a file that was met before."""
        return self._by_inode.get(executable)

    def by_record(self, executable: tuple[int, int] | None, command: bytes) -> Name:
        """Name an ended process from its exit record."""
        if executable is not None:
            path = self._by_inode.get(executable)
            if path is None:
                path = self._search(executable, command)
            if path is not None:
                return Name(path, known=True)
        return Name(command, known=False, executable=executable)

    def _search(self, executable: tuple[int, int], command: bytes) -> bytes | None:
        """Find the file by its name, and believe it only if device and inode are the record's."""
        if not command or b"/" in command:
            return None
        for candidate in self._candidates(command):
            try:
                found = os.stat(candidate)
            except OSError:
                continue
            if (kernel_device(found.st_dev), found.st_ino) == executable:
                path = os.path.realpath(candidate)
                self._learn(executable, path)
                return path
        return None

    def _candidates(self, command: bytes) -> list[bytes]:
        folders = [*reversed(self._folders), *STANDARD_FOLDERS]
        if len(command) < _COMMAND_LENGTH:
            return [os.path.join(folder, command) for folder in folders]
        found: list[bytes] = []
        for folder in folders:
            try:
                names = os.listdir(folder)
            except OSError:
                continue
            found += [os.path.join(folder, name) for name in names if name.startswith(command)]
        return found
