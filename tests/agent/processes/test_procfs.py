"""A live process read through open descriptors: real ones, and recorded directories."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.agent.processes.procfs import (
    NO_IO,
    IoCounters,
    OpenProcess,
    ProcessGone,
    add_io,
    subtract_io,
)

ONE = IoCounters(1, 2, 3, 4, 5, 6)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["/bin/sleep", "60"])
    yield child
    child.kill()
    child.wait()


def recorded(directory: Path, pid: int, stat: str, io: str | None = None) -> OpenProcess:
    path = directory / str(pid)
    (path / "task" / str(pid)).mkdir(parents=True)
    (path / "stat").write_text(stat)
    if io is not None:
        (path / "io").write_text(io)
        (path / "task" / str(pid) / "io").write_text(io)
    return OpenProcess(os.fsencode(directory), pid)


def stat_line(command: str, state: str = "S", start: int = 77) -> str:
    rest = [state, *map(str, range(4, 53))]
    rest[22 - 3] = str(start)
    return f"42 ({command}) {' '.join(rest)}\n"


def test_a_real_process_counts_what_it_used() -> None:
    live = OpenProcess(b"/proc", os.getpid())
    before = live.read_stat()
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    after = live.read_stat()
    live.close()
    assert after.cpu_user + after.cpu_system - before.cpu_user - before.cpu_system >= 0.08e9
    assert after.resident > 2**20
    assert after.threads >= 1


def test_the_clock_of_a_process_has_all_its_threads_to_the_nanosecond() -> None:
    burn = "import time\nend = time.thread_time() + 0.05\nwhile time.thread_time() < end: pass"
    text = (
        "import threading, time, sys\n"
        f"def burn():\n exec({burn!r})\n"
        "threads = [threading.Thread(target=burn) for _ in range(3)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "print(time.process_time_ns(), flush=True); sys.stdin.read()\n"
        "print(time.process_time_ns(), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        live = OpenProcess(b"/proc", program.pid)
        before = int(program.stdout.readline())
        read = live.cpu_clock()
        program.stdin.close()
        after = int(program.stdout.readline())
        program.wait()
    assert 150_000_000 <= before <= read <= after
    with pytest.raises(ProcessGone):
        live.cpu_clock()
    live.close()


def test_the_running_time_of_the_first_thread() -> None:
    live = OpenProcess(b"/proc", os.getpid())
    before = time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)
    # The kernel updates its account at its ticks and whenever the thread leaves its CPU.
    time.sleep(0.001)
    found = live.sched_stat()
    after = time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)
    assert found is not None
    assert before <= found.ran <= after
    live.close()


def test_input_and_output_of_a_real_process(tmp_path: Path) -> None:
    script = f"""
import sys
open({str(tmp_path / "out")!r}, "wb").write(bytes(100_000))
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        live = OpenProcess(b"/proc", child.pid)
        found = live.own_io(1, NO_IO, had_children=False)
        whole = live.io_with_children()
        child.communicate()
    live.close()
    assert found is not None
    assert 100_000 <= found.written_characters < 110_000
    assert found == whole


@pytest.mark.parametrize(
    "command", ["sleep", "a b", "a) R 1 (b", ")))", "new\nline", "(", ") S 9 9 9"]
)
def test_any_command_name_is_read_over(tmp_path: Path, command: str) -> None:
    live = recorded(tmp_path, 42, stat_line(command))
    assert live.start_ticks == 77
    assert live.read_stat().threads == 20
    live.close()


def test_an_ended_process_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    live = OpenProcess(b"/proc", sleeper.pid)
    assert live.own_io(1, NO_IO, had_children=False) is not None
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(ProcessGone):
        live.read_stat()
    with pytest.raises(ProcessGone):
        live.own_io(1, NO_IO, had_children=False)
    assert live.sched_stat() is None
    live.close()


def test_a_zombie_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    live = OpenProcess(b"/proc", sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessGone):
        live.read_stat()
    live.close()


def test_a_process_that_is_not_there_leaves_no_descriptor(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(ProcessGone):
        OpenProcess(b"/proc", 2**22 + 1)
    (tmp_path / "7").mkdir()
    # It ended between the opening and the reading: the file is empty.
    (tmp_path / "7" / "stat").write_text("")
    live = OpenProcess(os.fsencode(tmp_path), 7)
    with pytest.raises(ProcessGone):
        _ = live.start_ticks
    live.close()
    assert descriptors() == before


def test_without_a_free_descriptor_nothing_breaks(sleeper: subprocess.Popen[bytes]) -> None:
    live = OpenProcess(b"/proc", sleeper.pid)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    filler = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest + 2)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(filler) + 1, hard))
    try:
        with pytest.raises(ProcessGone):
            OpenProcess(b"/proc", sleeper.pid)
        assert live.own_io(1, NO_IO, had_children=False) is None
        assert live.read_stat().threads == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in filler:
            os.close(descriptor)
        live.close()


def test_ended_threads_are_added_where_the_file_does_not_hold_them(tmp_path: Path) -> None:
    io = "rchar: 10\nwchar: 20\nsyscr: 30\nsyscw: 40\nread_bytes: 50\nwrite_bytes: 60\n"
    live = recorded(tmp_path, 42, stat_line("a"), io)
    own = IoCounters(10, 20, 30, 40, 50, 60)
    assert live.own_io(1, NO_IO, had_children=False) == own
    assert live.own_io(1, ONE, had_children=False) == add_io(own, ONE)
    # The file of the whole process includes its ended threads.
    assert live.own_io(2, ONE, had_children=False) == own
    # It also includes children that were waited for, so the threads are summed one by one.
    assert live.own_io(2, ONE, had_children=True) == add_io(own, ONE)
    live.close()


def test_children_that_were_waited_for_are_not_counted_twice() -> None:
    script = """
import subprocess, sys, threading, time
thread = threading.Thread(target=sys.stdin.read); thread.start()
subprocess.run(["/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=1000000", "count=5"], stderr=-3)
print("ready", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        live = OpenProcess(b"/proc", child.pid)
        threads = live.read_stat().threads
        own = live.own_io(threads, NO_IO, had_children=True)
        whole = live.io_with_children()
        child.communicate()
    live.close()
    assert own is not None
    assert whole is not None
    assert whole.written_characters >= 5_000_000 > own.written_characters


def test_sums() -> None:
    assert subtract_io(add_io(ONE, ONE), ONE) == ONE
