"""The two netlink sockets on which the kernel reports process events.

:class:`Connector` receives an event for every fork, exec and exit; :class:`Taskstats` receives an
exit record with the resource usage of every thread that ends. Both belong to the initial network
namespace and require root (CAP_NET_ADMIN).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

NETLINK_CONNECTOR: Final = 11
NETLINK_GENERIC: Final = 16
SO_ATTACH_FILTER: Final = 26
SO_RCVBUFFORCE: Final = 33

FORK: Final = 0x00000001
EXEC: Final = 0x00000002
EXIT: Final = 0x80000000

#: Holds some 20,000 events or records, the largest burst between two drains.
RECEIVE_BUFFER: Final = 32 * 2**20

_MAX_MESSAGE_SIZE: Final = 16384

#: The slowest kernels tick a hundred times a second.
_MAX_TICK: Final = 10_000_000


class EventsUnavailable(OSError):
    """The kernel does not deliver process events here; the message gives the reason."""


class ProcessEvent(NamedTuple):
    what: int
    #: CLOCK_MONOTONIC of the event.
    time: int
    pid: int
    tgid: int
    #: Fork: the PID of the child. Exit: the status in the encoding of wait(2).
    value: int


class ExitRecord(NamedTuple):
    pid: int
    #: 0 before taskstats version 12.
    tgid: int
    parent: int
    uid: int
    last_of_group: bool
    exit_status: int
    command: bytes
    cpu_time: int
    user_time: int
    system_time: int
    elapsed: int
    peak_memory: int
    read_characters: int
    written_characters: int
    read_calls: int
    write_calls: int
    read_bytes: int
    written_bytes: int
    #: Device and inode of the executable; None before taskstats version 12.
    executable: tuple[int, int] | None


def _swapped(value: int) -> int:
    """A value as the packet filter loads it: in network byte order."""
    return int(struct.unpack("!I", struct.pack("=I", value))[0])


def _event_filter() -> list[tuple[int, int, int, int]]:
    """A classic BPF program that accepts forks of processes (not threads), execs and exits."""
    load, to_index, equal, equal_index, accept = 0x20, 0x07, 0x15, 0x1D, 0x06
    return [
        (load, 0, 0, 36),
        (equal, 6, 0, _swapped(EXEC)),
        (equal, 5, 0, _swapped(EXIT)),
        (equal, 0, 5, _swapped(FORK)),
        (load, 0, 0, 60),
        (to_index, 0, 0, 0),
        (load, 0, 0, 64),
        (equal_index, 0, 1, 0),
        (accept, 0, 0, 0xFFFFFFFF),
        (accept, 0, 0, 0),
    ]


def _attach_filter(connection: socket.socket) -> None:
    program = b"".join(struct.pack("=HBBI", *step) for step in _event_filter())
    memory = array("B", program)
    address, _ = memory.buffer_info()
    connection.setsockopt(
        socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", len(program) // 8, address)
    )


def _open(protocol: int, groups: int) -> socket.socket:
    connection = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol
    )
    try:
        connection.bind((0, groups))
        try:
            connection.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
        except PermissionError:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    except OSError:
        connection.close()
        raise
    return connection


class _Source:
    """A netlink socket that counts how often its receive buffer overflowed."""

    connection: socket.socket
    overruns: int = 0

    def fileno(self) -> int:
        return self.connection.fileno()

    def close(self) -> None:
        self.connection.close()

    def _messages(self) -> Iterator[bytes]:
        receive = self.connection.recv
        while True:
            try:
                yield receive(_MAX_MESSAGE_SIZE)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.overruns += 1


class Connector(_Source):
    """The process connector: forks, execs and exits of all processes, filtered in the kernel."""

    _MESSAGE: Final = struct.Struct("=IIQIIII")

    def __init__(self) -> None:
        try:
            self.connection = _open(NETLINK_CONNECTOR, 1)
            try:
                _attach_filter(self.connection)
                self._subscribe(listen=True)
            except OSError:
                self.connection.close()
                raise
        except OSError as error:
            raise EventsUnavailable(
                error.errno, f"process connector: {os.strerror(error.errno or 0)}"
            ) from None

    def _subscribe(self, *, listen: bool) -> None:
        operation = struct.pack("=I", 1 if listen else 2)
        message = struct.pack("=IIIIHH", 1, 1, 0, 0, len(operation), 0) + operation
        # 3 is NLMSG_DONE, the message type that the connector expects.
        self.connection.send(struct.pack("=IHHII", 16 + len(message), 3, 0, 0, 0) + message)

    def drain(self) -> list[ProcessEvent]:
        """All events since the last call, in the order of the kernel."""
        events: list[ProcessEvent] = []
        unpack = self._MESSAGE.unpack_from
        for message in self._messages():
            if len(message) < 68:
                continue
            what, _cpu, time, first, second, third, fourth = unpack(message, 36)
            if what == EXEC:
                events.append(ProcessEvent(EXEC, time, first, second, 0))
            elif what == EXIT:
                events.append(ProcessEvent(EXIT, time, first, second, third))
            elif what == FORK:
                events.append(ProcessEvent(FORK, time, first, second, fourth))
        return events

    def close(self) -> None:
        try:
            self._subscribe(listen=False)
        except OSError:
            pass
        super().close()


class _TaskstatsSocket(_Source):
    """A socket of the generic netlink family that taskstats has."""

    _ATTRIBUTE: Final = struct.Struct("=HH")

    def __init__(self) -> None:
        try:
            self.connection = _open(NETLINK_GENERIC, 0)
            try:
                self.family = self._find_family()
                self._start()
            except OSError:
                self.connection.close()
                raise
        except OSError as error:
            raise EventsUnavailable(error.errno, f"taskstats: {error.strerror or error}") from None

    def _start(self) -> None:
        pass

    def _command(
        self,
        family: int,
        command: int,
        attribute: int,
        value: bytes,
        *,
        sequence: int = 1,
        acknowledge: bool = False,
    ) -> None:
        body = struct.pack("=BBH", command, 1, 0)
        body += self._ATTRIBUTE.pack(4 + len(value), attribute) + value + b"\0" * (-len(value) % 4)
        flags = 5 if acknowledge else 1
        header = struct.pack("=IHHII", 16 + len(body), family, flags, sequence, 0)
        self.connection.send(header + body)

    def _find_family(self) -> int:
        self._command(NETLINK_GENERIC, 3, 2, b"TASKSTATS\0")
        reply = self._wait()
        if struct.unpack_from("=H", reply, 4)[0] == 2:
            raise OSError(errno.ENOENT, "the kernel was built without taskstats")
        position = 20
        while position + 4 <= len(reply):
            length, kind = self._ATTRIBUTE.unpack_from(reply, position)
            if kind == 1:
                return int(struct.unpack_from("=H", reply, position + 4)[0])
            position += max(4, (length + 3) & ~3)
        raise OSError(errno.EPROTO, "the kernel did not return the taskstats family")

    def _expect_acknowledgement(self) -> None:
        reply = self._wait()
        if struct.unpack_from("=H", reply, 4)[0] == 2:
            (code,) = struct.unpack_from("=i", reply, 16)
            if code:
                raise OSError(-code, os.strerror(-code))

    def _wait(self) -> bytes:
        self.connection.settimeout(2.0)
        try:
            return self.connection.recv(_MAX_MESSAGE_SIZE)
        finally:
            self.connection.setblocking(False)

    def _parse(self, message: bytes) -> ExitRecord | None:
        if struct.unpack_from("=H", message, 4)[0] != self.family or len(message) < 36:
            return None
        # Nested attributes: the aggregate of a thread contains its id and then the record.
        _, kind = self._ATTRIBUTE.unpack_from(message, 20)
        length, _ = self._ATTRIBUTE.unpack_from(message, 32)
        return parse_record(message[36 : 32 + length]) if kind == 4 else None


class Taskstats(_TaskstatsSocket):
    """Exit records: the resource usage of each thread that ended."""

    #: From the start of the record: version, exit code, flag ... up to the executable's inode.
    _CPU: Final = struct.Struct("=Q32s")
    _IDENTITY: Final = struct.Struct("=II I")
    _TIMES: Final = struct.Struct("=QQQ")
    _IO: Final = struct.Struct("=QQQQQQ8xQ")
    _GROUP: Final = struct.Struct("=I4xQQQ")

    def __init__(self, processors: Path = Path("/sys/devices/system/cpu/possible")) -> None:
        self._processors = processors
        super().__init__()

    def _start(self) -> None:
        mask = self._processors.read_bytes().strip() + b"\0"
        self._command(self.family, 1, 3, mask, acknowledge=True)
        self._expect_acknowledgement()

    def drain(self) -> list[ExitRecord]:
        """All records since the last call."""
        return [record for record in map(self._parse, self._messages()) if record is not None]


class TaskstatsQuery(_TaskstatsSocket):
    """Queries the record of a live thread. The kernel fills it from its own memory: in contrast to
    stat(2), device and inode of the executable do not depend on a file system that answers."""

    _sequence = 0

    def query(self, tid: int) -> ExitRecord | None:
        """The record so far of a thread; None if the thread is gone."""
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        try:
            self._command(self.family, 1, 1, struct.pack("=I", tid), sequence=self._sequence)
        except OSError:
            return None
        # The reply was queued before send() returned.
        for message in self._messages():
            if struct.unpack_from("=I", message, 8)[0] == self._sequence:
                return self._parse(message)
        return None


def parse_record(data: bytes) -> ExitRecord | None:
    """Parse a ``struct taskstats`` of version 8 or later; records of old kernels are shorter."""
    if len(data) < 312:
        return None
    version = int.from_bytes(data[:2], "little") if _LITTLE else int.from_bytes(data[:2], "big")
    if version == 15:
        # Version 15 moved every field after the first delay counter; 16 moved them back.
        return None
    cpu_time, command = Taskstats._CPU.unpack_from(data, 72)
    turns, waited = struct.unpack_from("=QQ", data, 16)
    (uid,) = struct.unpack_from("=I", data, 120)
    pid, parent, _begin = Taskstats._IDENTITY.unpack_from(data, 128)
    elapsed, user_time, system_time = Taskstats._TIMES.unpack_from(data, 144)
    (
        read_characters,
        written_characters,
        read_calls,
        write_calls,
        read_bytes,
        written_bytes,
        voluntary_switches,
    ) = Taskstats._IO.unpack_from(data, 216)
    if voluntary_switches == 0 and turns:
        # The CPU time in the record is that of the last scheduler tick, up to 4 ms ago: the whole
        # run time of a short program. A thread that never slept was running whenever it did not
        # wait for a CPU, and both of these times have a resolution of a microsecond. At most one
        # tick is missing; the rest was time without a CPU (throttling, or a hypervisor).
        ran = min(elapsed * 1000 - waited, cpu_time + _MAX_TICK)
        cpu_time = max(cpu_time, ran)
    tgid, executable = 0, None
    if version >= 12 and len(data) >= 400:
        tgid, _group_elapsed, device, inode = Taskstats._GROUP.unpack_from(data, 368)
        executable = (device, inode) if inode else None
    (exit_status,) = struct.unpack_from("=I", data, 4)
    (peak_memory,) = struct.unpack_from("=Q", data, 200)
    return ExitRecord(
        pid=pid,
        tgid=tgid,
        parent=parent,
        uid=uid,
        last_of_group=bool(data[8] & 0x20),
        exit_status=exit_status,
        command=command.split(b"\0", 1)[0],
        cpu_time=cpu_time,
        user_time=user_time * 1000,
        system_time=system_time * 1000,
        elapsed=elapsed * 1000,
        peak_memory=peak_memory * 1024,
        read_characters=read_characters,
        written_characters=written_characters,
        read_calls=read_calls,
        write_calls=write_calls,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        executable=executable,
    )


_LITTLE: Final = struct.pack("=H", 1) == b"\x01\x00"
