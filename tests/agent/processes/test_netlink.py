"""The kernel's events: the real ones, and records as older kernels cut them."""

import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsight.agent.processes import netlink
from jobsight.agent.processes.executables import kernel_device
from jobsight.agent.processes.netlink import (
    EXEC,
    EXIT,
    FORK,
    Connector,
    EventsUnavailable,
    ExitRecord,
    ProcessEvent,
    Taskstats,
    parse_record,
)
from tests.waiting import wait_until

#: The longest tick of a scheduler, in nanoseconds.
TICK = 10_000_000

#: Bytes of ``struct taskstats`` by version, from include/uapi/linux/taskstats.h.
LENGTHS = {8: 328, 9: 344, 10: 352, 11: 368, 12: 400, 13: 416, 14: 432, 16: 600}


def made_record(version: int, length: int = 0, **fields: int) -> bytes:
    """A record as a kernel of that version writes it."""
    data = bytearray(length or LENGTHS[version])
    values: dict[str, tuple[str, int, Any]] = {
        "version": ("=H", 0, version),
        "status": ("=I", 4, fields.get("status", 0)),
        "flag": ("=B", 8, fields.get("flag", 0)),
        "turns": ("=Q", 16, fields.get("turns", 0)),
        "waited": ("=Q", 24, fields.get("waited", 0)),
        "cpu": ("=Q", 72, fields.get("cpu", 5_000_000)),
        "command": ("=32s", 80, b"true"),
        "uid": ("=I", 120, 1000),
        "pid": ("=I", 128, 4321),
        "parent": ("=I", 132, 4000),
        "elapsed": ("=Q", 144, fields.get("elapsed", 6_000)),
        "user": ("=Q", 152, 3_000),
        "system": ("=Q", 160, 2_000),
        "peak": ("=Q", 200, 1_024),
        "io": ("=6Q", 216, None),
        "sleeps": ("=Q", 272, fields.get("sleeps", 1)),
    }
    if version >= 12:
        values["group"] = ("=I", 368, 4321)
        values["device"] = ("=Q", 384, 65024)
        values["inode"] = ("=Q", 392, 77)
    for form, offset, value in values.values():
        if form == "=6Q":
            struct.pack_into(form, data, offset, 1, 2, 3, 4, 5, 6)
        else:
            struct.pack_into(form, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize("version", sorted(LENGTHS))
def test_a_record_of_each_version(version: int) -> None:
    record = parse_record(made_record(version, flag=0x20))
    new = version >= 12
    assert record == ExitRecord(
        pid=4321,
        tgid=4321 if new else 0,
        parent=4000,
        uid=1000,
        last_of_group=True,
        exit_status=0,
        command=b"true",
        cpu_time=5_000_000,
        user_time=3_000_000,
        system_time=2_000_000,
        elapsed=6_000_000,
        peak_memory=2**20,
        read_characters=1,
        written_characters=2,
        read_calls=3,
        write_calls=4,
        read_bytes=5,
        written_bytes=6,
        executable=(65024, 77) if new else None,
    )


def test_a_record_without_an_executable_file() -> None:
    data = bytearray(made_record(12))
    struct.pack_into("=QQ", data, 384, 0, 0)
    record = parse_record(bytes(data))
    assert record is not None
    assert record.executable is None


@pytest.mark.parametrize("length", [0, 1, 100, 311])
def test_a_record_too_short_to_read_is_refused(length: int) -> None:
    assert parse_record(made_record(8)[:length]) is None


def test_a_record_of_version_15_is_refused_because_its_fields_moved() -> None:
    assert parse_record(made_record(15, length=500)) is None


def test_a_thread_that_never_slept_ran_whenever_it_did_not_wait() -> None:
    data = made_record(12, cpu=4_000_000, elapsed=8_000, waited=1_000_000, turns=2, sleeps=0)
    record = parse_record(data)
    assert record is not None
    assert record.cpu_time == 7_000_000


def test_more_than_a_tick_is_never_added() -> None:
    # Throttled for a second: neither asleep nor waiting for a CPU, and yet not running.
    data = made_record(12, cpu=4_000_000, elapsed=1_008_000, waited=0, turns=2, sleeps=0)
    record = parse_record(data)
    assert record is not None
    assert record.cpu_time <= 14_000_000


def test_a_thread_that_slept_used_what_its_record_says() -> None:
    record = parse_record(made_record(12, cpu=4_000_000, elapsed=900_000, turns=2, sleeps=1))
    assert record is not None
    assert record.cpu_time == 4_000_000


def test_without_the_protocol_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(EventsUnavailable, match="process connector: Protocol not supported"):
        Connector()
    with pytest.raises(EventsUnavailable, match="taskstats: Protocol not supported"):
        Taskstats()


@pytest.mark.parametrize("kind", [Connector, Taskstats])
def test_a_refused_socket_is_closed(
    kind: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[socket.socket] = []
    real = netlink._open

    def remember(protocol: int, groups: int) -> socket.socket:
        # Nobody but root may join the connector's group; what follows is what is tried here.
        made.append(real(netlink.NETLINK_GENERIC, 0))
        return made[-1]

    def refuse(*arguments: object, **named: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(netlink, "_open", remember)
    monkeypatch.setattr(netlink, "_attach_filter", refuse)
    monkeypatch.setattr(Taskstats, "_command", refuse)
    with pytest.raises(EventsUnavailable, match="Operation not permitted"):
        kind()
    assert made[0].fileno() == -1


# What follows asks the real kernel.


@pytest.fixture
def connector() -> Iterator[Connector]:
    opened = Connector()
    yield opened
    opened.close()


@pytest.fixture
def taskstats() -> Iterator[Taskstats]:
    opened = Taskstats()
    yield opened
    opened.close()


def record_of(taskstats: Taskstats, pid: int) -> ExitRecord:
    found: ExitRecord = wait_until(
        lambda: next((record for record in taskstats.drain() if record.pid == pid), None)
    )
    return found


@pytest.mark.root
def test_a_process_is_told_from_fork_to_exit(connector: Connector) -> None:
    child = subprocess.Popen(["/bin/sh", "-c", "exit 3"])
    child.wait()
    seen: list[ProcessEvent] = []

    def complete() -> bool:
        events = connector.drain()
        seen.extend(e for e in events if child.pid in (e.pid, e.value if e.what == FORK else 0))
        return any(event.what == EXIT for event in seen)

    wait_until(complete)
    assert [event.what for event in seen] == [FORK, EXEC, EXIT]
    assert seen[0].tgid == os.getpid()
    assert os.waitstatus_to_exitcode(seen[2].value) == 3
    assert sorted(seen, key=lambda event: event.time) == seen


@pytest.mark.root
def test_forks_of_threads_never_leave_the_kernel(connector: Connector) -> None:
    connector.drain()
    threads = [threading.Thread(target=time.sleep, args=(0,)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = {thread.native_id for thread in threads}
    # A process afterwards: when its fork has been told, so has all that was begun before. A thread
    # that was waited for may still be on its way out.
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    seen: list[ProcessEvent] = []

    def complete() -> bool:
        seen.extend(connector.drain())
        return {event.pid for event in seen if event.what == EXIT} >= {child.pid, *numbers}

    wait_until(complete)
    assert not [event for event in seen if event.what == FORK and event.value in numbers]
    assert not [
        e for e in seen if e.what == FORK and e.tgid == os.getpid() and e.value != child.pid
    ]


@pytest.mark.root
def test_the_record_of_a_real_process(taskstats: Taskstats) -> None:
    script = (
        "import time; x = bytearray(64 * 2**20); open('/dev/null', 'wb').write(x)\n"
        "while time.process_time() < 0.2: pass"
    )
    child = subprocess.Popen(["/usr/bin/python3", "-c", script])
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    record = record_of(taskstats, child.pid)
    spent = (usage.ru_utime + usage.ru_stime) * 1e9
    found = os.stat("/usr/bin/python3")
    assert record.tgid == child.pid
    assert record.parent == os.getpid()
    assert record.uid == 0
    assert record.last_of_group
    assert record.command == b"python3"
    # The record may lack the last tick, or be corrected by one; wait4 is a little later and also
    # counts the freeing of the memory.
    assert 0.2e9 - TICK <= record.cpu_time <= spent + TICK
    assert 64 * 2**20 <= record.peak_memory <= usage.ru_maxrss * 1024
    assert record.written_characters >= 64 * 2**20
    assert record.executable == (kernel_device(found.st_dev), found.st_ino)


@pytest.mark.root
def test_each_thread_has_a_record_and_one_of_them_is_the_last(taskstats: Taskstats) -> None:
    script = (
        "import threading;"
        "threads = [threading.Thread(target=sum, args=(range(100_000),)) for _ in range(5)];"
        "[thread.start() for thread in threads]"
    )
    child = subprocess.Popen(["/usr/bin/python3", "-c", script])
    child.wait()
    records: list[ExitRecord] = []

    def complete() -> bool:
        records.extend(record for record in taskstats.drain() if record.tgid == child.pid)
        return any(record.last_of_group for record in records)

    wait_until(complete)
    assert len(records) == 6
    assert len({record.pid for record in records}) == 6


@pytest.mark.root
def test_an_overrun_is_counted_and_the_socket_goes_on(
    connector: Connector, taskstats: Taskstats
) -> None:
    sources = (connector, taskstats)
    for source in sources:
        source.connection.setsockopt(socket.SOL_SOCKET, netlink.SO_RCVBUFFORCE, 1)
    subprocess.run(
        ["/bin/sh", "-c", "i=0; while [ $i -lt 60 ]; do /bin/true; i=$((i+1)); done"], check=True
    )
    for source in sources:
        source.drain()
        assert source.overruns >= 1
        source.connection.setsockopt(
            socket.SOL_SOCKET, netlink.SO_RCVBUFFORCE, netlink.RECEIVE_BUFFER
        )
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    wait_until(lambda: [event for event in connector.drain() if event.pid == child.pid])
    assert record_of(taskstats, child.pid)


@pytest.mark.root
def test_a_mask_beyond_the_machine_is_refused(tmp_path: Path) -> None:
    mask = tmp_path / "possible"
    mask.write_text("0-99999\n")
    with pytest.raises(EventsUnavailable, match="taskstats: "):
        Taskstats(mask)
