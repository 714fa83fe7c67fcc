"""Which path names whose programs, and what the tables of names may hold."""

import gc
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from jobsight.agent.processes.executables import (
    CommandLines,
    ExecutableName,
    ExecutableNames,
    StandardPrograms,
    kernel_device,
)
from jobsight.agent.processes.netlink import TaskstatsQuery
from jobsight.agent.processes.process import OTHER_PROGRAMS, ROW_SIZE, RowMemory
from tests.agent.lives import Kernel, figures, record
from tests.waiting import wait_until

FILE = (8, 4711)
ALICE, MALLORY = 1000, 6666


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def short(kernel: Kernel, pid: int, uid: int, command: bytes = b"tool") -> None:
    """A program that ends before its link is read."""
    kernel.names.links.pop(pid, None)
    kernel.tell(kernel.fork(100, pid), kernel.execute(pid))
    kernel.tell(kernel.exit(pid), record(pid, 5, command=command, executable=FILE, uid=uid))


def shown(kernel: Kernel, pid: int, uid: int, path: bytes, parent: int = 100) -> None:
    """A program whose link is read while it runs."""
    kernel.names.links[pid] = path
    kernel.tell(kernel.fork(parent, pid), kernel.execute(pid))
    kernel.pass_time(10**7)
    kernel.tell(kernel.exit(pid), record(pid, 5, executable=FILE, uid=uid))


def test_a_path_that_one_user_has_shown_does_not_name_the_programs_of_another(
    kernel: Kernel,
) -> None:
    """A hard link to a file of somebody else, or an inode that was reused."""
    kernel.job(200)
    shown(kernel, 7, MALLORY, b"/home/mallory/xmrig", parent=200)
    usage = kernel.job()
    short(kernel, 8, ALICE)
    assert figures(usage)[b"tool"] == (1, 1, 5)
    # What the job shows itself comes first.
    shown(kernel, 9, ALICE, b"/opt/tool")
    assert figures(usage)[b"/opt/tool"] == (2, 2, 10)
    short(kernel, 10, ALICE)
    assert figures(usage)[b"/opt/tool"] == (3, 3, 15)


def test_a_path_that_two_users_have_shown_names_the_programs_of_all(kernel: Kernel) -> None:
    kernel.job(200)
    shown(kernel, 7, MALLORY, b"/opt/tool", parent=200)
    shown(kernel, 8, ALICE, b"/opt/tool", parent=200)
    usage = kernel.job()
    short(kernel, 9, 1001)
    assert figures(usage)[b"/opt/tool"] == (1, 1, 5)


def test_a_path_is_not_learned_for_others_after_events_were_lost(kernel: Kernel) -> None:
    """Among them may be an exec: the link was read before it, the inode is that of after it."""
    usage = kernel.job()
    kernel.names.links[7] = b"/home/mallory/a"
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    kernel.tracker.losses += 1
    kernel.tell(kernel.exit(7), record(7, 5, executable=FILE, uid=MALLORY))
    assert kernel.names.path_of(FILE, MALLORY) is None
    assert figures(usage)[b"/home/mallory/a"] == (1, 1, 5)


def test_the_shared_paths_are_limited_in_bytes() -> None:
    names = ExecutableNames(b"/no/such/proc", shared_limit=100_000, standard=StandardPrograms(()))
    for inode in range(1000):
        names.learn((8, inode), b"/" + b"x" * 3800, ALICE)
        names.learn((9, 1), b"/link/%d/" % inode + b"x" * 3800, ALICE)
    assert names._shared_size <= 100_000
    assert sum(len(shared.path) for shared in names._shared.values()) <= 100_000
    assert names.path_of((8, 999), ALICE) is not None
    assert names.path_of((8, 0), ALICE) is None


def test_long_paths_without_end_fold_into_one_row_and_leave_room_for_others(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threat S-06: the sums stay exact, and the job next to keeps its rows."""
    # Accounts of earlier tests would otherwise be collected in between.
    gc.collect()
    monkeypatch.setattr(RowMemory, "limit", RowMemory.used + 2**20)
    usage = kernel.job()
    for number in range(2000):
        shown(kernel, 7, MALLORY, b"/%04d/" % number + b"x" * 3800)
    # The row of all others is there also if there is no room for it.
    assert RowMemory.used <= RowMemory.limit + ROW_SIZE + len(OTHER_PROGRAMS.path)
    rows = figures(usage)
    assert sum(executions for executions, _, _ in rows.values()) == 2000
    assert sum(cpu for _, _, cpu in rows.values()) == 10_000
    assert rows[b"other programs"][0] == usage.folded > 1000
    assert len(kernel.tracker._unresolved) <= 1000
    honest = kernel.job(200)
    for number in range(50):
        shown(kernel, 8, ALICE, b"/usr/bin/%d" % number, parent=200)
    assert b"other programs" not in figures(honest)
    assert honest.folded == 0
    del usage, honest


def test_a_process_that_calls_exec_without_end_is_limited(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.tell(kernel.fork(100, 7))
    for number in range(500):
        kernel.names.links[7] = b"/bin/%d" % (number % 7)
        kernel.tell(kernel.execute(7, after=20))
        kernel.names.links.pop(7)
    process = kernel.tracker.processes[7]
    assert len(process.segments) <= 64
    kernel.tell(kernel.exit(7), record(7, 9000))
    rows = figures(usage)
    assert sum(executions for executions, _, _ in rows.values()) == usage.executions == 500
    assert sum(cpu for _, _, cpu in rows.values()) == 9000


def test_unnamed_programs_of_one_file_are_limited(kernel: Kernel) -> None:
    kernel.job()
    for number in range(1500):
        short(kernel, 7, MALLORY, command=b"c%d" % number)
    assert len(kernel.tracker._unresolved) <= 1000


def test_programs_in_the_standard_directories_are_known_by_inode(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "bin", tmp_path / "opt"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "a-program-with-a-long-name").write_text("x")
    (elsewhere / "java").write_text("y")
    (folder / "java").symlink_to(elsewhere / "java")
    (folder / "broken").symlink_to(tmp_path / "nothing")
    (tmp_path / "sbin").symlink_to(folder)
    programs = StandardPrograms([bytes(folder), bytes(tmp_path / "sbin"), b"/no/such/directory"])

    def path_of(path: Path) -> bytes | None:
        found = path.stat()
        return programs.path_of((kernel_device(found.st_dev), found.st_ino))

    assert path_of(folder / "java") is None
    programs.wait(60)
    assert path_of(folder / "java") == bytes(elsewhere / "java")
    assert path_of(folder / "a-program-with-a-long-name").endswith(b"long-name")
    assert programs.path_of((0, 1)) is None
    assert programs.version == 1


def test_a_command_line_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    """Threat S-14: a process has put a file system that does not answer under its arguments."""
    for pid in (1, 2):
        (tmp_path / str(pid)).mkdir()
    (tmp_path / "2" / "cmdline").write_bytes(b"python3\0fit.py\0")
    os.mkfifo(tmp_path / "1" / "cmdline")
    lines = CommandLines(bytes(tmp_path))
    assert lines.read(2) == [b"fit.py"]
    assert lines.read(1) == []
    assert lines.read(2) == []
    # It answers after all.
    (tmp_path / "1" / "cmdline").write_bytes(b"late\0argument\0")
    assert wait_until(lambda: lines.read(2)) == [b"fit.py"]
    assert lines.read(3) == []


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_kernel_tells_the_file_of_a_live_process(tmp_path: Path) -> None:
    program = tmp_path / "sleep"
    shutil.copy(shutil.which("sleep") or "", program)
    names = ExecutableNames()
    names.taskstats = TaskstatsQuery()
    expected = ExecutableName(bytes(program), known=True)
    with subprocess.Popen([program, "60"]) as process:
        wait_until(lambda: names.by_link(process.pid) == expected)
        found = program.stat()
        file = (kernel_device(found.st_dev), found.st_ino)
        assert names.query(process.pid, expected) == (file, 0)
        assert names.query(process.pid, expected._replace(path=b"/other")) is None
        process.kill()
    assert names.query(process.pid, expected) is None
    names.taskstats.close()
