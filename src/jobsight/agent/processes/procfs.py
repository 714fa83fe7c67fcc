"""Reads a live process in /proc through descriptors that stay open.

Once its process is gone, an open descriptor fails with ESRCH: a reused PID is never mistaken for
the old process. Reading an open file also costs a third of opening it.
"""

from __future__ import annotations

import errno
import os
import time
from typing import Final, NamedTuple

TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
#: A job with more processes than there are descriptors must not end the agent.
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
#: The clock of a process that the scheduler keeps (CPUCLOCK_SCHED).
_CPUCLOCK_SCHED: Final = 2
#: The fields in use end before these sizes even with the longest numbers, and objects of these
#: sizes come from Python's own allocator.
_STAT_SIZE: Final = 400
_IO_SIZE: Final = 320
#: Bypasses the constructor of a named tuple, which takes as long as a read.
_new_tuple: Final = tuple.__new__


class ProcessGone(Exception):
    """The process ended between two reads."""


class ProcessStat(NamedTuple):
    """Fields of /proc/PID/stat: CPU times in nanoseconds since the start, resident memory."""

    cpu_user: int
    cpu_system: int
    threads: int
    resident: int


class SchedStat(NamedTuple):
    """Nanoseconds that a thread has run, and waited for a CPU."""

    ran: int
    waited: int


class IoCounters(NamedTuple):
    """Fields of /proc/PID/io."""

    read_characters: int
    written_characters: int
    read_calls: int
    write_calls: int
    read_bytes: int
    written_bytes: int


NO_IO: Final = IoCounters(0, 0, 0, 0, 0, 0)


# Both run for every process that ends, and a loop costs three times as much.


def add_io(left: IoCounters, right: IoCounters) -> IoCounters:
    return IoCounters(
        left[0] + right[0],
        left[1] + right[1],
        left[2] + right[2],
        left[3] + right[3],
        left[4] + right[4],
        left[5] + right[5],
    )


def subtract_io(left: IoCounters, right: IoCounters) -> IoCounters:
    return IoCounters(
        left[0] - right[0],
        left[1] - right[1],
        left[2] - right[2],
        left[3] - right[3],
        left[4] - right[4],
        left[5] - right[5],
    )


class Descriptors:
    """Limits the descriptors of live processes: a fork bomb must not exhaust them."""

    limit = 1 << 30
    opened = 0


class OpenProcess:
    """The open files of one process. Every read raises :class:`ProcessGone` after its end."""

    __slots__ = (
        "_directory",
        "_io",
        "_io_data",
        "_io_includes_children",
        "_parsed_io",
        "_parsed_stat",
        "_start_ticks",
        "_stat",
        "_stat_data",
        "pid",
    )

    def __init__(self, proc: bytes, pid: int) -> None:
        self.pid = pid
        self._directory = b"%s/%d" % (proc, pid)
        self._io = -1
        self._io_includes_children = False
        # An idle process gives the same bytes again, which are not parsed again.
        self._stat_data = self._io_data = b""
        self._parsed_stat = ProcessStat(0, 0, 0, 0)
        self._parsed_io = NO_IO
        self._start_ticks: int | None = None
        self._stat = -1
        if Descriptors.opened >= Descriptors.limit:
            raise ProcessGone
        try:
            self._stat = os.open(self._directory + b"/stat", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            raise ProcessGone from None
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                raise ProcessGone from None
            raise
        # The I/O counters will need a second one.
        Descriptors.opened += 2

    @property
    def start_ticks(self) -> int:
        """When the process was started, in ticks since boot."""
        if self._start_ticks is None:
            self._start_ticks = int(self._stat_fields()[19])
        return self._start_ticks

    def _stat_fields(self) -> list[bytes]:
        """The fields after the command name, which may itself contain blanks and parentheses."""
        try:
            data = os.pread(self._stat, _STAT_SIZE, 0)
        except ProcessLookupError:
            raise ProcessGone from None
        if not data:
            raise ProcessGone
        return data[data.rindex(b")") + 2 :].split(b" ", 22)

    def read_stat(self) -> ProcessStat:
        # Does not call _stat_fields(): a sampling round does this for every process of the node.
        try:
            data = os.pread(self._stat, _STAT_SIZE, 0)
        except ProcessLookupError:
            raise ProcessGone from None
        if data == self._stat_data:
            return self._parsed_stat
        if not data:
            raise ProcessGone
        fields = data[data.rindex(b")") + 2 :].split(b" ", 22)
        if fields[0] == b"Z":
            raise ProcessGone
        self._stat_data = data
        self._parsed_stat = stat = _new_tuple(
            ProcessStat,
            (
                int(fields[11]) * TICK,
                int(fields[12]) * TICK,
                int(fields[17]),
                int(fields[21]) * PAGE,
            ),
        )
        return stat

    def cpu_clock(self) -> int:
        """CPU time in nanoseconds of all threads, exited and live. Costs a tenth of a reading in
        /proc.

        The clock is identified by the PID. Use it only in the PID namespace of /proc, and only
        while exit events are received before the kernel reuses a PID.
        """
        try:
            return time.clock_gettime_ns((~self.pid << 3) | _CPUCLOCK_SCHED)
        except OSError:
            raise ProcessGone from None

    def has_ended(self) -> bool:
        """Whether it is a zombie; a zombie with further threads is a first thread that exited."""
        fields = self._stat_fields()
        return fields[0] in (b"Z", b"X") and int(fields[17]) < 2

    def parent(self) -> int:
        """The PID of its parent; 0 for a parent outside of the PID namespace."""
        return int(self._stat_fields()[1])

    def children_cpu(self) -> tuple[int, int]:
        """User and system time of the children it has waited for."""
        fields = self._stat_fields()
        return int(fields[13]) * TICK, int(fields[14]) * TICK

    def sched_stat(self) -> SchedStat | None:
        """Scheduling statistics of its first thread; None when it is gone."""
        return read_sched_stat(self._directory)

    def io_with_children(self) -> IoCounters | None:
        """The I/O of the process and of the children it has waited for; None if not permitted."""
        return self.own_io(2, NO_IO, had_children=False)

    def own_io(
        self, threads: int, exited_io: IoCounters, *, had_children: bool
    ) -> IoCounters | None:
        """The I/O of the process itself; None if it may not be read.

        /proc/PID/io also includes children that the process has waited for, and their exit
        records count them too. The file of its only thread does not include them; with several
        threads, /proc/PID/io is correct until a child has ended. ``exited_io`` is the I/O of its
        exited threads, which only /proc/PID/io includes.
        """
        try:
            if threads > 1 and had_children:
                return self._sum_of_threads(exited_io)
            with_children = threads > 1
            if self._io < 0 or with_children != self._io_includes_children:
                self._open_io(with_children)
            data = os.pread(self._io, _IO_SIZE, 0)
            if data != self._io_data:
                self._io_data, self._parsed_io = data, _parse_io(data)
        except (FileNotFoundError, ProcessLookupError):
            raise ProcessGone from None
        except PermissionError:
            return None
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                return None
            raise
        if with_children or exited_io is NO_IO:
            return self._parsed_io
        return add_io(self._parsed_io, exited_io)

    def _open_io(self, with_children: bool) -> None:
        if self._io >= 0:
            os.close(self._io)
            self._io = -1
        name = b"/io" if with_children else b"/task/%d/io" % self.pid
        self._io = os.open(self._directory + name, os.O_RDONLY | os.O_CLOEXEC)
        self._io_includes_children = with_children

    def _sum_of_threads(self, total: IoCounters) -> IoCounters:
        for thread in os.listdir(self._directory + b"/task"):
            try:
                with open(b"%s/task/%s/io" % (self._directory, thread), "rb", 0) as file:
                    total = add_io(total, _parse_io(file.read(512)))
            except (FileNotFoundError, ProcessLookupError):
                continue
        return total

    def close(self) -> None:
        if self._stat >= 0:
            Descriptors.opened -= 2
        for descriptor in (self._stat, self._io):
            if descriptor >= 0:
                os.close(descriptor)
        self._stat = self._io = -1

    def __del__(self) -> None:
        # A read that the kernel holds back may still use the descriptors when its process is
        # forgotten.
        self.close()


def parent_of(proc: bytes, pid: int) -> int | None:
    """The PID of the parent of a process; None if the process is gone."""
    try:
        with open(b"%s/%d/stat" % (proc, pid), "rb", 0) as file:
            data = file.read(_STAT_SIZE)
    except OSError:
        return None
    fields = data[data.rindex(b")") + 2 :].split(b" ", 2) if data else []
    return int(fields[1]) if len(fields) > 1 else None


def real_uid(proc: bytes, pid: int) -> int | None:
    """The real user of a process; None if it is gone. The owner of its directory in /proc is root
    for any process that must not be dumped."""
    try:
        with open(b"%s/%d/status" % (proc, pid), "rb", 0) as file:
            return int(file.read(1024).partition(b"\nUid:")[2].split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        return None


def read_sched_stat(directory: bytes) -> SchedStat | None:
    """Scheduling statistics of the first thread of a process, by its directory in /proc."""
    try:
        with open(directory + b"/schedstat", "rb", 0) as file:
            ran, waited, _ = file.read(64).split(b" ", 2)
            return SchedStat(int(ran), int(waited))
    except (OSError, ValueError):
        return None


def _parse_io(data: bytes) -> IoCounters:
    words = data.split()
    if len(words) < 12:
        raise ProcessGone
    return _new_tuple(IoCounters, map(int, words[1:12:2]))
