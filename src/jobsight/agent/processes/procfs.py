"""A live process, read through descriptors that stay open.

An open descriptor fails with ESRCH once its process is gone, so a reused pid can never be
mistaken for the old process, and a read costs a third of an open.
"""

from __future__ import annotations

import errno
import os
import time
from typing import Final, NamedTuple

TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
#: A job with more processes than we may have descriptors must not end the agent.
_CROWDED: Final = (errno.EMFILE, errno.ENFILE)


class Vitals(NamedTuple):
    """What one look at a process says; cumulative since its birth."""

    cpu_user: int
    cpu_system: int
    threads: int
    resident: int


class Scheduled(NamedTuple):
    """Nanoseconds that a thread has run, and waited for a CPU."""

    ran: int
    waited: int


class InputOutput(NamedTuple):
    read_characters: int
    written_characters: int
    read_calls: int
    write_calls: int
    read_bytes: int
    written_bytes: int


#: The kind of a process's clock that the scheduler keeps (CPUCLOCK_SCHED).
_RUN_TIME: Final = 2
#: What is wanted of each file lies before this even with the longest numbers, and an object of
#: that size comes from Python's own allocator.
_STAT_SIZE: Final = 400
_IO_SIZE: Final = 320
#: The way around a named tuple's own constructor, which takes as long as a read.
_new_tuple: Final = tuple.__new__

NOTHING: Final = InputOutput(0, 0, 0, 0, 0, 0)


# Written out: these run for every process that ends, and a loop costs three times as much.


def add(one: InputOutput, other: InputOutput) -> InputOutput:
    return InputOutput(
        one[0] + other[0],
        one[1] + other[1],
        one[2] + other[2],
        one[3] + other[3],
        one[4] + other[4],
        one[5] + other[5],
    )


def subtract(one: InputOutput, other: InputOutput) -> InputOutput:
    return InputOutput(
        one[0] - other[0],
        one[1] - other[1],
        one[2] - other[2],
        one[3] - other[3],
        one[4] - other[4],
        one[5] - other[5],
    )


class Gone(Exception):
    """The process ended between two reads."""


class Descriptors:
    """How many descriptors live processes may take: a fork bomb must leave some to the rest."""

    limit = 1 << 30
    opened = 0


class OpenProcess:
    """The open descriptors of one process."""

    __slots__ = (
        "_directory",
        "_io",
        "_io_data",
        "_io_parsed",
        "_stat",
        "_stat_data",
        "_vitals",
        "_whole",
        "pid",
        "start_ticks",
    )

    def __init__(self, proc: bytes, pid: int) -> None:
        self.pid = pid
        self._directory = b"%s/%d" % (proc, pid)
        self._io = -1
        self._whole = False
        # A process that did nothing says the same bytes again, which need no parsing.
        self._stat_data = self._io_data = b""
        self._vitals = Vitals(0, 0, 0, 0)
        self._io_parsed = NOTHING
        self._stat = -1
        if Descriptors.opened >= Descriptors.limit:
            raise Gone
        try:
            self._stat = os.open(self._directory + b"/stat", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            raise Gone from None
        except OSError as error:
            if error.errno in _CROWDED:
                raise Gone from None
            raise
        # One for its I/O is sure to follow.
        Descriptors.opened += 2
        try:
            self.start_ticks = int(self._fields()[19])
        except Gone:
            self.close()
            raise

    def _read_stat(self) -> bytes:
        try:
            data = os.pread(self._stat, _STAT_SIZE, 0)
        except ProcessLookupError:
            raise Gone from None
        if not data:
            raise Gone
        return data

    def _fields(self) -> list[bytes]:
        return _split(self._read_stat())

    def vitals(self) -> Vitals:
        # Written out and not in calls: a round does this for every process of the node.
        try:
            data = os.pread(self._stat, _STAT_SIZE, 0)
        except ProcessLookupError:
            raise Gone from None
        if data == self._stat_data:
            return self._vitals
        if not data:
            raise Gone
        fields = data[data.rindex(b")") + 2 :].split(b" ", 22)
        if fields[0] == b"Z":
            raise Gone
        self._stat_data = data
        self._vitals = vitals = _new_tuple(
            Vitals,
            (
                int(fields[11]) * TICK,
                int(fields[12]) * TICK,
                int(fields[17]),
                int(fields[21]) * PAGE,
            ),
        )
        return vitals

    def clock(self) -> int:
        """Nanoseconds that all its threads have run, ended and live.

        Asked by its number, so only where ours are the numbers of /proc, and where the end of a
        process is told before its number is given away again.
        """
        try:
            return time.clock_gettime_ns((~self.pid << 3) | _RUN_TIME)
        except OSError:
            raise Gone from None

    def has_ended(self) -> bool:
        """Whether it only waits for its parent to take note; a first thread may end early."""
        fields = self._fields()
        return fields[0] in (b"Z", b"X") and int(fields[17]) < 2

    def parent(self) -> int:
        """Its parent's id; 0 where that is outside of what can be seen."""
        return int(self._fields()[1])

    def waited_for(self) -> tuple[int, int]:
        """User and system time of the children it has waited for."""
        fields = self._fields()
        return int(fields[13]) * TICK, int(fields[14]) * TICK

    def whole_input_output(self) -> InputOutput | None:
        """What the process and the children it has waited for read and wrote."""
        return self.input_output(2, NOTHING, had_children=False)

    def scheduled(self) -> Scheduled | None:
        """What its first thread got of the CPUs; None when it is gone."""
        return scheduled_of(self._directory)

    def input_output(
        self, threads: int, ended: InputOutput, *, had_children: bool
    ) -> InputOutput | None:
        """What the process itself read and wrote; None where it may not be seen.

        The file of the whole process also counts children that it has waited for, whose own
        exit records count them too. The file of its one thread does not; with several threads
        the whole is right as long as no child has ended. ``ended`` is what the exit records of
        its ended threads say, which only the file of the whole process includes.
        """
        try:
            if threads > 1 and had_children:
                return self._sum_of_threads(ended)
            whole = threads > 1
            if self._io < 0 or whole != self._whole:
                self._open_io(whole)
            data = os.pread(self._io, _IO_SIZE, 0)
            if data != self._io_data:
                self._io_data, self._io_parsed = data, _parse_io(data)
        except (FileNotFoundError, ProcessLookupError):
            raise Gone from None
        except PermissionError:
            return None
        except OSError as error:
            if error.errno in _CROWDED:
                return None
            raise
        if whole or ended is NOTHING:
            return self._io_parsed
        return add(self._io_parsed, ended)

    def _open_io(self, whole: bool) -> None:
        if self._io >= 0:
            os.close(self._io)
            self._io = -1
        name = b"/io" if whole else b"/task/%d/io" % self.pid
        self._io = os.open(self._directory + name, os.O_RDONLY | os.O_CLOEXEC)
        self._whole = whole

    def _sum_of_threads(self, total: InputOutput) -> InputOutput:
        for thread in os.listdir(self._directory + b"/task"):
            try:
                with open(b"%s/task/%s/io" % (self._directory, thread), "rb", 0) as file:
                    total = add(total, _parse_io(file.read(512)))
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


def scheduled_of(directory: bytes) -> Scheduled | None:
    """What the first thread of a process got of the CPUs, by its directory in /proc."""
    try:
        with open(directory + b"/schedstat", "rb", 0) as file:
            ran, waited, _ = file.read(64).split(b" ", 2)
            return Scheduled(int(ran), int(waited))
    except (OSError, ValueError):
        return None


def _split(data: bytes) -> list[bytes]:
    # The command may hold blanks and brackets; nothing behind its last bracket does.
    return data[data.rindex(b")") + 2 :].split(b" ", 22)


def _parse_io(data: bytes) -> InputOutput:
    words = data.split()
    if len(words) < 12:
        raise Gone
    return _new_tuple(InputOutput, map(int, words[1:12:2]))
