"""Which file a process runs: by its link, by the inode of its exit record, by its command name.

A program of a few milliseconds is gone before its link can be read. Its exit record still
carries device and inode, so one successful look, at any other run of the same file, names it.

Which script, module or archive an interpreter runs, by its command line.

Only this one argument is taken, and only where an administrator has asked for it: other arguments
may hold what a user wants nobody to see, and so does program text (``-c``, ``-e``), which is never
looked at.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

#: Where a command that was never caught alive is looked for, besides the directories already seen.
STANDARD_DIRECTORIES: Final = (
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
#: A search asks the file system once per directory, so only the latest are remembered.
_FOLDERS_LIMIT: Final = 64


class ExecutableName(NamedTuple):
    path: bytes
    known: bool
    #: Where only the command's name is known: the file that a later look may still name.
    executable: tuple[int, int] | None = None


#: A program that its own exec of the next one replaced before anybody could look.
UNKNOWN: Final = ExecutableName(b"replaced at once", known=False)


def same_file(one: ExecutableName, other: ExecutableName | None) -> bool:
    """Whether two names are of one executable, whatever script it runs."""
    return other is not None and file_of(one.path) == file_of(other.path)


def file_of(path: bytes) -> bytes:
    """The executable alone."""
    return path.partition(SEPARATOR)[0]


def kernel_device(device: int) -> int:
    """A device number the way the kernel writes it in an exit record."""
    major, minor = os.major(device), os.minor(device)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


class ExecutableNames:
    """Names of executables, learned from every successful look and bounded in number."""

    def __init__(self, proc: bytes = b"/proc", limit: int = 50_000) -> None:
        self.proc = proc
        #: ExecutableName what interpreters run, too; see jobsight.agent.processes.executables.
        self.scripts = False
        self._limit = limit
        self._by_inode: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._known_paths: dict[bytes, tuple[int, int]] = {}
        self._directories: OrderedDict[bytes, None] = OrderedDict()

    def by_link(self, pid: int) -> ExecutableName | None:
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
        return ExecutableName(path, known=True)

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
        directory = os.path.dirname(path)
        if directory not in STANDARD_DIRECTORIES:
            self._directories[directory] = None
            self._directories.move_to_end(directory)
            if len(self._directories) > _FOLDERS_LIMIT:
                self._directories.popitem(last=False)
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

    def learn(self, executable: tuple[int, int] | None, name: ExecutableName) -> None:
        """Take the inode of an exit record for a process whose link was read: on some file
        systems (overlay, btrfs) it is not the one that stat gives."""
        if executable is not None and name.known and executable not in self._by_inode:
            self._learn(executable, file_of(name.path))

    def of_inode(self, executable: tuple[int, int]) -> bytes | None:
        """The path of a file that was met before."""
        return self._by_inode.get(executable)

    def by_record(self, executable: tuple[int, int] | None, command: bytes) -> ExecutableName:
        """Name an ended process from its exit record."""
        if executable is not None:
            path = self._by_inode.get(executable)
            if path is None:
                path = self._search(executable, command)
            if path is not None:
                return ExecutableName(path, known=True)
        return ExecutableName(command, known=False, executable=executable)

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
        directories = [*reversed(self._directories), *STANDARD_DIRECTORIES]
        if len(command) < _COMMAND_LENGTH:
            return [os.path.join(directory, command) for directory in directories]
        found: list[bytes] = []
        for directory in directories:
            try:
                names = os.listdir(directory)
            except OSError:
                continue
            found += [os.path.join(directory, name) for name in names if name.startswith(command)]
        return found


#: Between the path of an interpreter and what it runs; no path of a file has two slashes.
SEPARATOR: Final = b"//"
#: Bytes of a command line that are read, and of a script's name that are kept.
COMMAND_LINE: Final = 16384
_LONGEST: Final = 1024


class _Language(NamedTuple):
    """How an interpreter reads its command line."""

    #: Letters of options: program text follows, a module, a value (attached or the next
    #: argument), a value that is attached.
    text: bytes = b""
    module: bytes = b""
    value: bytes = b""
    attached: bytes = b""
    #: Options in words that take the next argument for their value.
    words: frozenset[bytes] = frozenset()
    #: Options in words whose value is what is run, and those with program text.
    runs: frozenset[bytes] = frozenset()
    programs: frozenset[bytes] = frozenset()
    #: Options of one dash are words, too.
    dash_words: bool = False
    #: A plain argument is what is run.
    plain: bool = True
    #: What is run must be a mere name: it could be program text.
    name_only: bool = False


_PYTHON = _Language(
    text=b"c", module=b"m", value=b"WXQ", words=frozenset({b"--check-hash-based-pycs"})
)
_PERL = _Language(text=b"eE", value=b"I", attached=b"MmFCDxil0dV")
_JULIA = _Language(
    text=b"eE",
    value=b"ptJCHL",
    attached=b"Og",
    words=frozenset(
        {b"--threads", b"--procs", b"--sysimage", b"--cpu-target", b"--home", b"--load",
         b"--machine-file", b"--gcthreads"}
    ),
    programs=frozenset({b"--eval", b"--print"}),
)  # fmt: skip
_R = _Language(
    runs=frozenset({b"--file", b"-f"}),
    programs=frozenset({b"-e"}),
    words=frozenset({b"-g", b"--gui", b"--encoding"}),
    dash_words=True,
    plain=False,
)
_JAVA = _Language(
    words=frozenset(
        {b"-cp", b"-classpath", b"--class-path", b"-p", b"--module-path", b"--add-modules",
         b"--upgrade-module-path", b"--add-opens", b"--add-exports", b"--add-reads"}
    ),
    runs=frozenset({b"-jar", b"-m", b"--module"}),
    dash_words=True,
)  # fmt: skip
_MATLAB = _Language(
    runs=frozenset({b"-batch", b"-r"}), dash_words=True, plain=False, name_only=True
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
    """What an interpreter runs, by its arguments without its own name; None where that is not
    to be seen: program text, standard input, an interactive session."""
    language = _language(path)
    if language is None:
        return None
    script = _find(language, iter(arguments))
    if not script or len(script) > _LONGEST:
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


def _find(language: _Language, arguments: Iterator[bytes]) -> bytes | None:
    for argument in arguments:
        if argument == b"--":
            return next(arguments, None) if language.plain else None
        if argument == b"-" or (argument[:1] != b"-" and not language.plain):
            return None
        if argument[:1] != b"-":
            return argument
        word = argument.partition(b"=")
        if argument.startswith(b"--") or language.dash_words:
            if word[0] in language.programs:
                return None
            if word[0] in language.runs:
                return word[2] if word[1] else next(arguments, None)
            if argument in language.words:
                next(arguments, None)
            continue
        for place, letter in enumerate(argument[1:], 2):
            rest = argument[place:]
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
