"""Names executables by the link in /proc, the inode in an exit record, or the command name.

A program of a few milliseconds ends before its link can be read. Its exit record contains device
and inode of the executable: one successful reading of any other execution of the same file names
it.

Users decide where files are and what is mounted in their namespaces. Nothing here therefore opens,
lists or stats a path that a link shows: a file system that does not answer must not stop the
agent. Device and inode come from the kernel's own records (:class:`TaskstatsQuery`). What one job
shows about a file names the programs of other jobs only under the conditions of
:meth:`ExecutableNames.path_of`.

:func:`script_of` determines which script, module or archive an interpreter runs. Of the command
line only this one argument is used, and only if an administrator has enabled it: other arguments
may be confidential, and program text (``-c``, ``-e``) is never read.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from jobsight.agent.processes.netlink import TaskstatsQuery
from jobsight.model import SCRIPT_SEPARATOR

#: Their programs are known by device and inode before any process has run them.
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
#: Bytes of the paths that jobs share, and what an entry takes in addition to its path.
SHARED_LIMIT: Final = 4 * 2**20
_ENTRY_SIZE: Final = 400
#: Programs in the standard directories; a node has some thousands.
_MAX_STANDARD_PROGRAMS: Final = 20_000
#: A program that is not found makes the standard directories be read again after this.
_STANDARD_MAX_AGE: Final = 600.0
#: Device and inode of a file, in the encoding of exit records.
FileId = tuple[int, int]


class ExecutableName(NamedTuple):
    path: bytes
    known: bool
    #: Device and inode, if only the command name is known: the path may be resolved later.
    executable: FileId | None = None
    #: The path is that of a mount namespace other than the node's. In a namespace of their own,
    #: users decide which file a path leads to.
    own_namespace: bool = False


#: An executable that called exec before its link could be read.
REPLACED: Final = ExecutableName(b"replaced at once", known=False)


def same_file(name: ExecutableName, other: ExecutableName | None) -> bool:
    """Whether both names have the same executable, whatever script it runs."""
    return other is not None and executable_path(name.path) == executable_path(other.path)


def executable_path(path: bytes) -> bytes:
    """The path without the script."""
    return path.partition(SCRIPT_SEPARATOR)[0]


def without_script(name: ExecutableName) -> ExecutableName:
    """The name of the executable alone."""
    path = executable_path(name.path)
    return name if path == name.path else name._replace(path=path)


def kernel_device(device: int) -> int:
    """A device number in the encoding of exit records."""
    major, minor = os.major(device), os.minor(device)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


class _SharedPath(NamedTuple):
    path: bytes
    #: The only user whose processes have shown this path; None for several.
    uid: int | None


class ExecutableNames:
    """Names of executables, and the paths by device and inode that all jobs share."""

    def __init__(
        self,
        proc: bytes = b"/proc",
        *,
        shared_limit: int = SHARED_LIMIT,
        standard: StandardPrograms | None = None,
    ) -> None:
        self.proc = proc
        #: Append the script to the path of an interpreter.
        self.include_scripts = False
        #: Tells device and inode of a live process's executable; None without process events.
        self.taskstats: TaskstatsQuery | None = None
        self.standard = standard if standard is not None else StandardPrograms()
        self._shared: OrderedDict[FileId, _SharedPath] = OrderedDict()
        self._shared_limit = shared_limit
        self._shared_size = 0
        self._learned = 0
        self._command_lines = CommandLines(proc)
        #: The mount namespaces of this process and of PID 1. A service of systemd has one of its
        #: own, with the same programs.
        self._node_namespaces = _mount_namespaces(proc)

    def by_link(self, pid: int) -> ExecutableName | None:
        """Read the link of a live process; None if it is gone or is a kernel thread."""
        link = b"%s/%d/exe" % (self.proc, pid)
        try:
            path = os.readlink(link)
            # Read after the link: a user's process can leave the namespace of the node, but it
            # cannot return to it.
            namespace = os.readlink(b"%s/%d/ns/mnt" % (self.proc, pid))
            if path.endswith(_DELETED):
                path = self._without_deleted(pid, path)
            if self.include_scripts and is_interpreter(path):
                path = self._with_script(pid, path, link)
        except OSError:
            return None
        return ExecutableName(path, True, None, namespace not in self._node_namespaces)

    def _without_deleted(self, pid: int, path: bytes) -> bytes:
        """The path of a file that was removed, which the kernel marks. A file may also have a name
        that ends like the mark; its command name shows that if it is short."""
        stripped = path[: -len(_DELETED)]
        with open(b"%s/%d/comm" % (self.proc, pid), "rb", 0) as file:
            command = file.read(64)[:-1]
        marked, plain = (
            text[text.rfind(b"/") + 1 :][:_COMMAND_LENGTH] for text in (path, stripped)
        )
        return path if command == marked != plain else stripped

    def _with_script(self, pid: int, path: bytes, link: bytes) -> bytes:
        before = os.readlink(link)
        script = script_of(path, self._command_lines.read(pid))
        # After an exec between the two readings the arguments are those of another program.
        if script is None or os.readlink(link) != before:
            return path
        return path + SCRIPT_SEPARATOR + script

    def by_command(self, pid: int) -> ExecutableName | None:
        """The command name of a live process whose link the kernel holds back."""
        try:
            with open(b"%s/%d/comm" % (self.proc, pid), "rb", 0) as file:
                return ExecutableName(file.read(64)[:-1], known=False)
        except OSError:
            return None

    def query(self, pid: int, name: ExecutableName) -> tuple[FileId, int] | None:
        """Device and inode of the executable of a live process, and its user, if the process still
        has the name that was read before."""
        record = self.taskstats.query(pid) if self.taskstats is not None else None
        if record is None or record.executable is None or self.by_link(pid) != name:
            return None
        return record.executable, record.uid

    def learn(self, executable: FileId, path: bytes, uid: int | None) -> None:
        """Share the path of a file, as it is in the mount namespace of the node; ``uid`` is the
        user of the process that showed it, None if it is known to all."""
        known = self._shared.get(executable)
        if known is not None and known.path == path:
            if known.uid is None or known.uid == uid:
                return
            uid = None
        self._forget(executable)
        self._shared[executable] = _SharedPath(path, uid)
        self._shared_size += len(path) + _ENTRY_SIZE
        self._learned += 1
        while self._shared_size > self._shared_limit:
            self._forget(next(iter(self._shared)))

    def _forget(self, executable: FileId) -> None:
        shared = self._shared.pop(executable, None)
        if shared is not None:
            self._shared_size -= len(shared.path) + _ENTRY_SIZE

    def learn_path(self, path: bytes) -> None:
        """Learn the path of a file that this process is about to execute."""
        try:
            self.learn(_file_id(os.stat(path)), os.path.realpath(path), None)
        except OSError:
            return

    def path_of(self, executable: FileId, uid: int) -> bytes | None:
        """The path of a file in the mount namespace of the node, for a process of a user.

        A program in a standard directory has the path there. Any other path is used for the
        processes of the user who has shown it, and for those of others once two users have: a hard
        link, or a file that was removed and whose inode another file has now, does not name the
        programs of somebody else.
        """
        path = self.standard.path_of(executable)
        if path is None:
            shared = self._shared.get(executable)
            if shared is not None and shared.uid in (None, uid):
                path = shared.path
        return path

    @property
    def version(self) -> int:
        """Changes whenever :meth:`path_of` may give another answer."""
        return self._learned + self.standard.version


def _mount_namespaces(proc: bytes) -> frozenset[bytes]:
    namespaces = set()
    for pid in (b"self", b"1"):
        try:
            namespaces.add(os.readlink(b"%s/%s/ns/mnt" % (proc, pid)))
        except OSError:
            # Without root, that of PID 1 may not be read.
            continue
    return frozenset(namespaces)


def _file_id(stat: os.stat_result) -> FileId:
    return kernel_device(stat.st_dev), stat.st_ino


class StandardPrograms:
    """The programs in the standard directories, by device and inode.

    A thread reads the directories when a program is first looked up, because a part of them may be
    on a file server.
    """

    def __init__(self, directories: Sequence[bytes] = STANDARD_DIRECTORIES) -> None:
        self._directories = directories
        self._paths: dict[FileId, bytes] = {}
        #: When the directories were last read, on the monotonic clock in seconds.
        self._read_at: float | None = None
        self._thread: threading.Thread | None = None
        #: How often the directories have been read.
        self.version = 0

    def path_of(self, executable: FileId) -> bytes | None:
        """The path of a program; None if there is none, or the directories were not read yet."""
        path = self._paths.get(executable)
        if path is None:
            self.refresh()
        return path

    def refresh(self) -> None:
        """Start to read the directories, unless they have been read lately."""
        now = time.monotonic()
        if not self._directories or (
            self._read_at is not None and now - self._read_at <= _STANDARD_MAX_AGE
        ):
            return
        self._read_at = now
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._read, name="standard programs", daemon=True
            )
            self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until a reading that is under way is complete, up to ``seconds`` after its start."""
        if self._thread is not None and self._thread.is_alive() and self._read_at is not None:
            self._thread.join(max(0.0, self._read_at + seconds - time.monotonic()))

    def _read(self) -> None:
        paths: dict[FileId, bytes] = {}
        links: list[bytes] = []
        # /bin is a link to /usr/bin on most systems.
        for directory in dict.fromkeys(map(os.path.realpath, self._directories)):
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        if entry.is_symlink():
                            links.append(entry.path)
                        elif len(paths) < _MAX_STANDARD_PROGRAMS:
                            paths.setdefault(_file_id(entry.stat()), entry.path)
            except OSError:
                continue
        for link in links:
            try:
                executable = _file_id(os.stat(link))
            except OSError:
                continue
            if executable not in paths and len(paths) < _MAX_STANDARD_PROGRAMS:
                paths[executable] = os.path.realpath(link)
        self._paths = paths
        self.version += 1


class CommandLines:
    """Reads the command lines of processes in a thread.

    A process can put a file system that does not answer under its own arguments. The thread waits
    then, and command lines are left out until it has its answer.
    """

    #: Seconds to wait for a command line.
    _TIMEOUT: Final = 0.2

    def __init__(self, proc: bytes) -> None:
        self._proc = proc
        self._requests: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[tuple[int, list[bytes]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Requests that were not answered yet.
        self._pending = 0

    def read(self, pid: int) -> list[bytes]:
        """The arguments of a process without argv[0]; none if they cannot be read in time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="command lines", daemon=True)
            self._thread.start()
        while self._pending and not self._replies.empty():
            self._replies.get()
            self._pending -= 1
        if self._pending:
            return []
        self._pending += 1
        self._requests.put(pid)
        try:
            _, arguments = self._replies.get(timeout=self._TIMEOUT)
        except queue.Empty:
            return []
        self._pending -= 1
        return arguments

    def _run(self) -> None:
        while True:
            pid = self._requests.get()
            try:
                with open(b"%s/%d/cmdline" % (self._proc, pid), "rb", 0) as file:
                    arguments = file.read(MAX_COMMAND_LINE).split(b"\0")[1:-1]
            except OSError:
                arguments = []
            self._replies.put((pid, arguments))


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
