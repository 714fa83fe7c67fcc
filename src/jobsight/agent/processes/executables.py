"""Names executables by the link in /proc, the inode in an exit record, or the command name.

A program of a few milliseconds ends before its link can be read. Its exit record contains device
and inode of the executable: one successful reading of any other execution of the same file names
it.

:func:`script_of` determines which script, module or archive an interpreter runs. Of the command
line only this one argument is used, and only if an administrator has enabled it: other arguments
may be confidential, and program text (``-c``, ``-e``) is never read.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from jobsight.model import SCRIPT_SEPARATOR

#: Searched for a command that was never seen alive, in addition to directories already seen.
STANDARD_DIRECTORIES: Final = (
    b"/usr/bin",
    b"/bin",
    b"/usr/local/bin",
    b"/usr/sbin",
    b"/sbin",
    b"/usr/local/sbin",
)
_DELETED: Final = b" (deleted)"
#: The kernel truncates a command name to this length.
_COMMAND_LENGTH: Final = 15
#: A search costs one stat(2) per directory, so only the latest directories are kept.
_MAX_DIRECTORIES: Final = 64


class ExecutableName(NamedTuple):
    path: bytes
    known: bool
    #: Device and inode, if only the command name is known: the path may be resolved later.
    executable: tuple[int, int] | None = None


#: An executable that called exec before its link could be read.
REPLACED: Final = ExecutableName(b"replaced at once", known=False)


def same_file(name: ExecutableName, other: ExecutableName | None) -> bool:
    """Whether both names have the same executable, whatever script it runs."""
    return other is not None and executable_path(name.path) == executable_path(other.path)


def executable_path(path: bytes) -> bytes:
    """The path without the script."""
    return path.partition(SCRIPT_SEPARATOR)[0]


def kernel_device(device: int) -> int:
    """A device number in the encoding of exit records."""
    major, minor = os.major(device), os.minor(device)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


class ExecutableNames:
    """Paths of executables by device and inode, learned from every link that was read."""

    def __init__(self, proc: bytes = b"/proc", limit: int = 50_000) -> None:
        self.proc = proc
        #: Append the script to the path of an interpreter.
        self.include_scripts = False
        self._limit = limit
        self._by_inode: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._known_paths: dict[bytes, tuple[int, int]] = {}
        self._directories: OrderedDict[bytes, None] = OrderedDict()

    def by_link(self, pid: int) -> ExecutableName | None:
        """Read the link of a live process; None if it is gone or is a kernel thread."""
        link = b"%s/%d/exe" % (self.proc, pid)
        try:
            path = os.readlink(link)
            if path.endswith(_DELETED) and not os.path.lexists(path):
                path = path[: -len(_DELETED)]
            if path not in self._known_paths:
                self._learn(_file_id(os.stat(link)), path)
            if self.include_scripts and is_interpreter(path):
                path = self._with_script(pid, path, link)
        except OSError:
            return None
        return ExecutableName(path, known=True)

    def _with_script(self, pid: int, path: bytes, link: bytes) -> bytes:
        before = os.readlink(link)
        with open(b"%s/%d/cmdline" % (self.proc, pid), "rb", 0) as file:
            arguments = file.read(MAX_COMMAND_LINE).split(b"\0")[1:-1]
        script = script_of(path, arguments)
        # After an exec between the two readings the arguments are those of another program.
        if script is None or os.readlink(link) != before:
            return path
        return path + SCRIPT_SEPARATOR + script

    def _learn(self, inode: tuple[int, int], path: bytes) -> None:
        self._by_inode[inode] = path
        self._known_paths[path] = inode
        directory = os.path.dirname(path)
        if directory not in STANDARD_DIRECTORIES:
            self._directories[directory] = None
            self._directories.move_to_end(directory)
            if len(self._directories) > _MAX_DIRECTORIES:
                self._directories.popitem(last=False)
        if len(self._by_inode) > self._limit:
            _, forgotten = self._by_inode.popitem(last=False)
            self._known_paths.pop(forgotten, None)

    def learn_path(self, path: bytes) -> None:
        """Learn the path of a file that is about to be executed."""
        try:
            self._learn(_file_id(os.stat(path)), os.path.realpath(path))
        except OSError:
            return

    def learn(self, executable: tuple[int, int] | None, name: ExecutableName) -> None:
        """Learn the inode in the exit record of a process whose link was read: on some file
        systems (overlay, btrfs) it differs from that of stat(2)."""
        if executable is not None and name.known and executable not in self._by_inode:
            self._learn(executable, executable_path(name.path))

    def path_of(self, executable: tuple[int, int]) -> bytes | None:
        """The path of a file by device and inode; None if it is not known."""
        return self._by_inode.get(executable)

    def by_record(self, executable: tuple[int, int] | None, command: bytes) -> ExecutableName:
        """Name an ended process by its exit record."""
        if executable is not None:
            path = self._by_inode.get(executable)
            if path is None:
                path = self._search(executable, command)
            if path is not None:
                return ExecutableName(path, known=True)
        return ExecutableName(command, known=False, executable=executable)

    def _search(self, executable: tuple[int, int], command: bytes) -> bytes | None:
        """Find the file by its command name; device and inode must match those of the record."""
        if not command or b"/" in command:
            return None
        for candidate in self._candidates(command):
            try:
                matches = _file_id(os.stat(candidate)) == executable
            except OSError:
                continue
            if matches:
                path = os.path.realpath(candidate)
                self._learn(executable, path)
                return path
        return None

    def _candidates(self, command: bytes) -> list[bytes]:
        directories = [*reversed(self._directories), *STANDARD_DIRECTORIES]
        if len(command) < _COMMAND_LENGTH:
            return [os.path.join(directory, command) for directory in directories]
        paths: list[bytes] = []
        for directory in directories:
            try:
                names = os.listdir(directory)
            except OSError:
                continue
            paths += [os.path.join(directory, name) for name in names if name.startswith(command)]
        return paths


def _file_id(stat: os.stat_result) -> tuple[int, int]:
    return kernel_device(stat.st_dev), stat.st_ino


#: Bytes of a command line that are read; a longer script name is ignored.
MAX_COMMAND_LINE: Final = 16384
_MAX_SCRIPT_NAME: Final = 1024


class _Language(NamedTuple):
    """The command line of an interpreter."""

    #: Short options: with program text, with a module, with a value (attached or the next
    #: argument), with an attached value.
    text: bytes = b""
    module: bytes = b""
    value: bytes = b""
    attached: bytes = b""
    #: Long options whose value is the next argument.
    long: frozenset[bytes] = frozenset()
    #: Long options whose value is the script, and those with program text.
    runs: frozenset[bytes] = frozenset()
    programs: frozenset[bytes] = frozenset()
    #: Long options begin with one dash.
    single_dash: bool = False
    #: The first argument that is no option is the script.
    positional: bool = True
    #: The script must be a plain name, because the argument may be program text.
    name_only: bool = False


_PYTHON = _Language(
    text=b"c", module=b"m", value=b"WXQ", long=frozenset({b"--check-hash-based-pycs"})
)
_PERL = _Language(text=b"eE", value=b"I", attached=b"MmFCDxil0dV")
_JULIA = _Language(
    text=b"eE",
    value=b"ptJCHL",
    attached=b"Og",
    long=frozenset(
        {b"--threads", b"--procs", b"--sysimage", b"--cpu-target", b"--home", b"--load",
         b"--machine-file", b"--gcthreads"}
    ),
    programs=frozenset({b"--eval", b"--print"}),
)  # fmt: skip
_R = _Language(
    runs=frozenset({b"--file", b"-f"}),
    programs=frozenset({b"-e"}),
    long=frozenset({b"-g", b"--gui", b"--encoding"}),
    single_dash=True,
    positional=False,
)
_JAVA = _Language(
    long=frozenset(
        {b"-cp", b"-classpath", b"--class-path", b"-p", b"--module-path", b"--add-modules",
         b"--upgrade-module-path", b"--add-opens", b"--add-exports", b"--add-reads"}
    ),
    runs=frozenset({b"-jar", b"-m", b"--module"}),
    single_dash=True,
)  # fmt: skip
_MATLAB = _Language(
    runs=frozenset({b"-batch", b"-r"}), single_dash=True, positional=False, name_only=True
)

_INTERPRETERS: Final = (
    (re.compile(rb"(?:python|pypy)[\d.]*"), _PYTHON),
    (re.compile(rb"perl[\d.]*"), _PERL),
    (re.compile(rb"julia"), _JULIA),
    (re.compile(rb"R"), _R),
    (re.compile(rb"java"), _JAVA),
    (re.compile(rb"(?i:matlab)"), _MATLAB),
)


def is_interpreter(path: bytes) -> bool:
    return _language(path) is not None


def script_of(path: bytes, arguments: Sequence[bytes]) -> bytes | None:
    """The script, module or archive that an interpreter runs, by its arguments without argv[0].
    None for program text, standard input and interactive sessions."""
    language = _language(path)
    if language is None:
        return None
    script = _script_argument(language, iter(arguments))
    if not script or len(script) > _MAX_SCRIPT_NAME:
        return None
    if language.name_only and not re.fullmatch(rb"[A-Za-z]\w*", script):
        return None
    return script


def _language(path: bytes) -> _Language | None:
    program = path[path.rfind(b"/") + 1 :]
    for pattern, language in _INTERPRETERS:
        if pattern.fullmatch(program):
            return language
    return None


def _script_argument(language: _Language, arguments: Iterator[bytes]) -> bytes | None:
    for argument in arguments:
        if argument == b"--":
            return next(arguments, None) if language.positional else None
        if argument == b"-" or (argument[:1] != b"-" and not language.positional):
            return None
        if argument[:1] != b"-":
            return argument
        option, equals, value = argument.partition(b"=")
        if argument.startswith(b"--") or language.single_dash:
            if option in language.programs:
                return None
            if option in language.runs:
                return value if equals else next(arguments, None)
            if argument in language.long:
                next(arguments, None)
            continue
        for index, letter in enumerate(argument[1:], 2):
            rest = argument[index:]
            if letter in language.text:
                return None
            if letter in language.module:
                module = rest or next(arguments, None)
                return None if module is None else b"-m " + module
            if letter in language.value:
                if not rest:
                    next(arguments, None)
                break
            if letter in language.attached:
                break
    return None
