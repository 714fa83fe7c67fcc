"""Users who attack the root agent of their node with what a job may do."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jobsight.agent.probes.slurm_cgroup import SlurmCounters
from jobsight.agent.processes.procfs import real_uid
from jobsight.model import JobPart
from tests.agent.left_behind import nothing_left_behind
from tests.agent.slurm_trees import (
    RunningAgent,
    SlurmJob,
    SlurmNode,
    available,
    built,
    following,
    row,
)
from tests.hostile.attacks import fuse
from tests.hostile.attacks.fuse import FLUSH, GETATTR, SilentFuse, after_open
from tests.waiting import wait_until

__all__ = ["nothing_left_behind"]

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not available(), reason="needs root and the hierarchies of cgroup v1"),
]

NEEDS_FUSE = pytest.mark.skipif(not fuse.available(), reason="needs /dev/fuse")
MALLORY = 6666
AS_MALLORY = ("setpriv", f"--reuid={MALLORY}", f"--regid={MALLORY}", "--clear-groups")


@pytest.fixture
def node() -> Iterator[SlurmNode]:
    node = SlurmNode()
    try:
        yield node
    finally:
        node.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that every user may enter."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory.is_relative_to("/tmp") and directory != Path("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o055)
    return tmp_path


def may_unshare() -> bool:
    command = [*AS_MALLORY, "unshare", "-Urm", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def program_of_mallory(place: Path, kind: str = "wall") -> Path:
    """A copy of a program that mallory owns; another file than that of the honest job."""
    program = place / kind
    shutil.copy(built(kind), program)
    os.chown(program, MALLORY, MALLORY)
    program.chmod(0o755)
    return program


def storm(job: SlurmJob, program: Path, runs: int = 100, **named: Any) -> None:
    """Many programs of a millisecond: most end before their link is read."""
    assert job.step(built("storm"), str(runs), "4", program, "1000", **named).wait() == 0


def executions(part: JobPart, program: Path) -> int:
    """Those of a program; on a busy machine all links may be read too late, and its path is then
    the name that the kernel gave."""
    return sum(
        use.executions
        for use in part.executables
        if use.path in (bytes(program), os.fsencode(program.name))
    )


def test_s04_a_bind_mount_names_programs_in_its_own_job_only(node: SlurmNode, place: Path) -> None:
    if not may_unshare():
        pytest.skip("needs user namespaces for users")
    program = program_of_mallory(place)
    forged = place / "vasp_std"
    forged.touch()
    script = (
        f"mount --bind {program} {forged} && {forged} 1000000"
        f" && {built('storm')} 100 4 {forged} 1000"
    )
    # The programs of the tests are in a directory of root.
    built("storm").parent.chmod(0o755)
    with following(node.finder()) as running:
        running.listen(node)
        mallory, alice = node.job(71, MALLORY), node.job(72)
        forging = (*AS_MALLORY, "unshare", "-Urm", "sh", "-c", script)
        assert mallory.step(*forging).wait() == 0
        storm(alice, program, 200)
        framed, honest = running.last(mallory), running.last(alice)
        assert executions(honest, program) == 200
        assert not [use for use in honest.executables if use.own_namespace]
        assert not [use for use in honest.executables if use.path == bytes(forged)]
        # In the job itself the path is kept, with its mark.
        assert row(framed, forged).executions == 101
        assert row(framed, forged).own_namespace


def test_s04_a_container_shows_its_own_paths_and_keeps_those_of_the_node(
    node: SlurmNode, place: Path
) -> None:
    """Programs that are the same files as on the node need no mark."""
    inside = place / "image"
    inside.mkdir()
    script = (
        f"mount -t tmpfs none {inside} && cp {built('wall')} {inside}/solver"
        f" && {inside}/solver 1000000 && {built('storm')} 50 4 {inside}/solver 1000 && sleep 1"
    )
    with following(node.finder()) as running:
        running.listen(node)
        job = node.job(1)
        assert job.step("unshare", "-m", "sh", "-c", script).wait() == 0
        part = running.last(job)
        assert row(part, inside / "solver").executions == 51
        assert row(part, inside / "solver").own_namespace
        sleep = os.path.realpath(shutil.which("sleep") or "")
        assert row(part, sleep).path_known
        wait_until(lambda: not row(running.kept.last(1), sleep).own_namespace)


def test_s05_programs_of_many_names_make_the_agent_list_no_directory_of_a_user(
    node: SlurmNode, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    for name in ("listdir", "scandir"):
        whole = getattr(os, name)

        def recorded(path: Any = ".", whole: Any = whole) -> Any:
            listed.append(os.fsdecode(path) if not isinstance(path, int) else "")
            return whole(path)

        monkeypatch.setattr(os, name, recorded)
    names = [place / f"a-name-of-15-characters-{number}" for number in range(100)]
    for name in names:
        shutil.copy(built("wall"), name)
    runs = "; ".join(f"{name} 100" for name in names)
    with following(node.finder()) as running:
        running.listen(node)
        job, honest = node.job(1), node.job(2)
        assert job.step("sh", "-c", runs).wait() == 0
        storm(honest, built("wall"), 50)
        part = running.last(job)
        assert part.totals.executions == len(names) + 1
        assert executions(running.last(honest), built("wall")) == 50
    standard = ("/proc", "/sys", "/usr/bin", "/usr/sbin", "/usr/local", "/bin", "/sbin")
    assert not [path for path in listed if path.startswith("/") and not path.startswith(standard)]


def keeps_sampling(running: RunningAgent) -> bool:
    before = len(running.kept.batches)
    return bool(wait_until(lambda: len(running.kept.batches) > before + 3))


@NEEDS_FUSE
@pytest.mark.parametrize("uid", [0, MALLORY])
def test_s14_s20_a_program_on_a_file_system_that_does_not_answer(
    node: SlurmNode, place: Path, uid: int
) -> None:
    """With uid 0 the agent may ask the file system, which does not answer; that of a user refuses
    root (as with squashfuse or an AppImage)."""
    mount = place / "mount"
    mount.mkdir()
    os.chown(mount, uid, uid)
    prefix = AS_MALLORY if uid else ()
    with following(node.finder()) as running:
        running.listen(node)
        content = built("wall").read_bytes()
        # It is unmounted first: an agent that waits for it must not wait for ever.
        with closing(SilentFuse(mount, content, silent=after_open(GETATTR), uid=uid)) as silent:
            job, honest = node.job(1, uid), node.job(2)
            step = job.step(*prefix, silent.program, "2000000")
            wait_until(
                lambda: [use for use in executables(running, 1) if use == bytes(silent.program)]
            )
            assert step.poll() is None
            storm(honest, built("wall"), 50)
            assert executions(running.last(honest), built("wall")) == 50
            assert keeps_sampling(running)
            step.wait()
            assert not silent.unanswered
            part = running.last(job)
            assert row(part, silent.program).path_known


#: Opens a file that its exec closes, and executes a program.
CLOSES_IN_EXEC = """
import os, sys
os.open(sys.argv[1], os.O_RDONLY | os.O_CLOEXEC)
os.execv(sys.argv[2], sys.argv[2:])
"""


@NEEDS_FUSE
def test_s14_an_exec_that_waits_for_a_file_system(node: SlurmNode, place: Path) -> None:
    """Meanwhile the kernel holds back whoever reads the link, the I/O or the stat of it."""
    mount = place / "mount"
    mount.mkdir()
    os.chown(mount, MALLORY, MALLORY)
    program = program_of_mallory(place)
    with following(node.finder()) as running:
        running.listen(node)
        with closing(SilentFuse(mount, b"", silent=after_open(FLUSH), uid=MALLORY)) as silent:
            job, honest = node.job(1, MALLORY), node.job(2)
            hanging = ("/usr/bin/python3", "-c", CLOSES_IN_EXEC, silent.program, program, "1000")
            step = job.step(*AS_MALLORY, *hanging)
            wait_until(lambda: silent.unanswered)
            # While it lasts, and not after: the exit record has what was not read.
            wait_until(lambda: any(map(held_back, running.kept.parts(1))))
            storm(honest, built("wall"), 50)
            assert executions(running.last(honest), built("wall")) == 50
            assert keeps_sampling(running)
            assert running.kept.last(2).coverage["executables"].quality == "exact"
            assert step.poll() is None
        assert step.wait() == 0
        part = running.last(job)
        assert executions(part, program) == 1


def held_back(part: JobPart) -> bool:
    coverage = part.coverage["executables"]
    return coverage.quality == "estimate" and "holds back" in coverage.reason


def executables(running: RunningAgent, job_id: int) -> list[bytes]:
    return [use.path for part in running.kept.parts(job_id) for use in part.executables]


@pytest.mark.parametrize("name", ["slurmstepd", "slurmstepd-of-mallory"])
def test_s20_a_program_of_the_name_of_slurmstepd(node: SlurmNode, place: Path, name: str) -> None:
    """It is a program of the job like any other, when it is executed and when it is found."""
    program = program_of_mallory(place).rename(place / name)
    with following(node.finder()) as running:
        running.listen(node)
        job = node.job(1, MALLORY)
        assert job.step(*AS_MALLORY, program, "100000").wait() == 0
        part = running.last(job)
        assert row(part, program).executions == 1
        earlier = node.job(2, MALLORY)
        earlier.step(*AS_MALLORY, program, "60000000")
        wait_until(lambda: earlier.used() > 100_000_000)
    with following(node.finder()) as second:
        wait_until(lambda: bytes(program) in executables(second, 2))
        assert not [pid for _, pid in daemons_of(second, 2) if real_uid(b"/proc", pid)]


def daemons_of(running: RunningAgent, job_id: int) -> list[tuple[str, int]]:
    (job,) = [job for job in running.agent.jobs if job.view.sighting.job_id == job_id]
    assert isinstance(job.view.counters, SlurmCounters)
    return job.view.counters.daemons()


def test_s20_a_process_that_is_moved_into_a_job_is_found_by_its_cpu_time(
    node: SlurmNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pam_slurm_adopt does. The list of processes that is read now and then does not help."""
    monkeypatch.setattr("jobsight.agent.probes.cgroup.ROUNDS_PER_LISTING", 10**9)
    with following(node.finder()) as running:
        running.listen(node)
        job = node.job(1)
        job.step("sleep", "60")
        wait_until(lambda: len(running.kept.parts(1)) > 5)
        with subprocess.Popen([built("wall"), "60000000"]) as burner:
            try:
                # What it has used before is not in the counter of the job.
                wait_until(lambda: time.clock_gettime_ns((~burner.pid << 3) | 2) > 300_000_000)
                for controller in ("memory", "cpuacct"):
                    directory = job.directory(controller, "step_0", "task_0")
                    (directory / "cgroup.procs").write_text(str(burner.pid))
                wait_until(lambda: bytes(built("wall")) in executables(running, 1))
            finally:
                burner.kill()
        part = running.last(job)
        assert part.coverage["executables"].quality == "estimate"


def test_s29_a_cgroup_tree_of_a_thousand_levels(node: SlurmNode) -> None:
    with following(node.finder()) as running:
        running.listen(node)
        job = node.job(1)
        job.step("sleep", "60")
        wait_until(lambda: running.kept.parts(1))
        # The agent may see the job before its daemon has created all directories.
        task = job.directory("cpuacct", "step_0", "task_0")
        wait_until(task.is_dir)
        here = os.open(task, os.O_RDONLY)
        descriptors = [here]
        try:
            for _ in range(1000):
                os.mkdir("d", dir_fd=descriptors[-1])
                descriptors.append(os.open("d", os.O_RDONLY, dir_fd=descriptors[-1]))
            running.agent.collector.at(0, running.agent._scan)
            running.agent.collector.wake()
            assert keeps_sampling(running)
            storm(job, built("wall"), 20, step="1")
            assert executions(running.last(job), built("wall")) == 20
            assert not running.agent.collector.errors.counts
        finally:
            for descriptor in reversed(descriptors[:-1]):
                os.rmdir("d", dir_fd=descriptor)
            for descriptor in descriptors:
                os.close(descriptor)
