"""Jobs found by their cgroups: trees as Slurm makes them, on v1 and v2, some of which vanish."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from jobsight.agent.jobs import cgroup_watcher
from jobsight.agent.jobs.cgroup_watcher import CgroupWatcher, JobCgroup

SLUID = "S0ABCDEFGHJK1M"


def make(root: Path, *directories: str) -> None:
    for directory in directories:
        (root / directory).mkdir(parents=True, exist_ok=True)


def v1(root: Path, job: str, controllers: tuple[str, ...] = ("cpuacct", "memory")) -> None:
    make(root, *(f"{name}/{job}" for name in controllers))


def v2(root: Path, *directories: str) -> None:
    make(root, "system.slice", *directories)
    (root / "cgroup.controllers").write_text("cpu memory\n")


def found(root: Path, **named: object) -> list[JobCgroup]:
    finder = CgroupWatcher(root, **named)  # type: ignore[arg-type]
    try:
        return sorted(finder.jobs(), key=lambda cgroup: cgroup.key)
    finally:
        finder.close()


@pytest.mark.parametrize(("directory", "node"), [("slurm", None), ("slurm_n1", "n1")])
def test_jobs_of_v1(tmp_path: Path, directory: str, node: str | None) -> None:
    v1(tmp_path, f"{directory}/uid_1001/job_57/step_0/task_0")
    v1(tmp_path, "user.slice/uid_1001/job_58")
    (cgroup,) = found(tmp_path)
    assert (cgroup.job_id, cgroup.uid, cgroup.node, cgroup.sluid) == (57, 1001, node, None)
    assert cgroup.key == f"{directory}/uid_1001/job_57"
    assert set(cgroup.inodes) == {"cpuacct", "memory"}


@pytest.mark.parametrize("controller", ["cpuacct", "memory", "freezer", "cpuset"])
def test_a_job_in_one_hierarchy_alone(tmp_path: Path, controller: str) -> None:
    v1(tmp_path, "slurm/uid_0/job_1", (controller,))
    assert [cgroup.job_id for cgroup in found(tmp_path)] == [1]


@pytest.mark.parametrize(
    ("scope", "node"), [("slurmstepd.scope", None), ("n-1_slurmstepd.scope", "n-1")]
)
def test_jobs_of_v2(tmp_path: Path, scope: str, node: str | None) -> None:
    v2(tmp_path, f"system.slice/{scope}/job_9/step_batch/user/task_0", f"system.slice/{scope}/x")
    (cgroup,) = found(tmp_path)
    assert (cgroup.job_id, cgroup.node, list(cgroup.directories)) == (9, node, ["unified"])


def test_several_slurmd_on_one_machine(tmp_path: Path) -> None:
    v2(tmp_path, *(f"system.slice/n{n}_slurmstepd.scope/job_{n}" for n in (1, 2, 3)))
    assert [(cgroup.node, cgroup.job_id) for cgroup in found(tmp_path)] == [
        ("n1", 1),
        ("n2", 2),
        ("n3", 3),
    ]


def test_a_scope_outside_of_the_slice_and_other_names_by_setting(tmp_path: Path) -> None:
    v2(tmp_path, "slurmstepd.scope/job_1", "system.slice/site-steps/job_2")
    assert [cgroup.job_id for cgroup in found(tmp_path)] == [1]
    assert [cgroup.job_id for cgroup in found(tmp_path, scopes=["site-(?P<node>.+)"])] == [2]
    v1(tmp_path, "batch/uid_5/job_3")
    assert [cgroup.job_id for cgroup in found(tmp_path, scopes=[], v1_roots=["batch"])] == [3]


@pytest.mark.parametrize("name", ["s0abc", "x0ABCDEFGHJK1M", "S0ABCDEFGHJKIL", "job_", "job_1x"])
def test_names_that_are_no_jobs(tmp_path: Path, name: str) -> None:
    v2(tmp_path, f"system.slice/slurmstepd.scope/{name}")
    assert found(tmp_path) == []


@pytest.mark.parametrize("name", [SLUID, SLUID.lower()])
def test_a_sluid_gets_its_job_id_from_the_daemons_title(tmp_path: Path, name: str) -> None:
    step = f"cgroup/system.slice/slurmstepd.scope/{name}/step_batch"
    v2(tmp_path / "cgroup", *(f"{step.removeprefix('cgroup/')}/{part}" for part in ("slurm",)))
    (tmp_path / step / "slurm" / "cgroup.procs").write_text("70\n71\n")
    for pid, title in ((70, b"bash\0"), (71, b"slurmstepd: [4711.batch]\0")):
        make(tmp_path, f"proc/{pid}")
        (tmp_path / "proc" / str(pid) / "cmdline").write_bytes(title)
    (cgroup,) = found(tmp_path / "cgroup", proc=tmp_path / "proc")
    assert (cgroup.job_id, cgroup.sluid) == (4711, SLUID)


def test_a_sluid_without_a_daemon_has_no_job_id_yet(tmp_path: Path) -> None:
    v2(tmp_path, f"system.slice/slurmstepd.scope/{SLUID}/step_batch/slurm")
    (cgroup,) = found(tmp_path, proc=tmp_path)
    assert (cgroup.job_id, cgroup.sluid) == (None, SLUID)


def test_a_users_title_is_not_believed(tmp_path: Path) -> None:
    step = tmp_path / "system.slice/slurmstepd.scope" / SLUID / "step_batch"
    v2(tmp_path, str((step / "user/task_0").relative_to(tmp_path)))
    (step / "user/task_0/cgroup.procs").write_text("70\n")
    make(tmp_path, "proc/70")
    (tmp_path / "proc/70/cmdline").write_bytes(b"slurmstepd: [1.batch]\0")
    (cgroup,) = found(tmp_path, proc=tmp_path / "proc")
    assert cgroup.job_id is None


@pytest.mark.root
def test_the_user_of_a_v2_job_is_its_tasks(tmp_path: Path) -> None:
    task = tmp_path / "system.slice/slurmstepd.scope/job_1/step_0/user/task_0"
    v2(tmp_path, str(task.relative_to(tmp_path)))
    (task / "cgroup.procs").write_text("")
    finder = CgroupWatcher(tmp_path)
    try:
        assert finder.jobs()[0].uid is None
        child = subprocess.Popen(["sleep", "60"], user=65534)
        try:
            (task / "cgroup.procs").write_text(f"{os.getpid()}\n{child.pid}\n")
            assert finder.jobs()[0].uid == 65534
            (task / "cgroup.procs").write_text("")
            assert finder.jobs()[0].uid == 65534
        finally:
            child.kill()
            child.wait()
    finally:
        finder.close()


def test_a_job_made_anew_under_the_same_name_is_another(tmp_path: Path) -> None:
    v1(tmp_path, "slurm/uid_0/job_1")
    (first,) = found(tmp_path)
    for name in ("cpuacct", "memory"):
        (tmp_path / name / "slurm/uid_0/job_1").rename(tmp_path / name / "old")
    v1(tmp_path, "slurm/uid_0/job_1")
    (second,) = found(tmp_path)
    assert first.key == second.key
    assert all(first.inodes[name] != second.inodes[name] for name in first.inodes)


def test_every_change_at_any_depth_is_told(tmp_path: Path) -> None:
    make(tmp_path, "cpuacct", "memory", "freezer", "cpuset")
    finder = CgroupWatcher(tmp_path)
    try:
        finder.jobs()
        path = tmp_path / "cpuacct"
        for name in ("slurm", "uid_0", "job_1", "step_0", "task_0"):
            path = path / name
            path.mkdir()
            assert finder.changed(), name
            finder.jobs()
        assert not finder.changed()
        (tmp_path / "cpuacct" / "docker").mkdir()
        assert not finder.changed()
        path.rmdir()
        assert finder.changed()
    finally:
        finder.close()


def test_a_folder_removed_and_made_anew_is_watched_again(tmp_path: Path) -> None:
    v1(tmp_path, "slurm/uid_0/job_1", ("cpuacct",))
    finder = CgroupWatcher(tmp_path)
    try:
        for _ in range(3):
            finder.jobs()
            (tmp_path / "cpuacct/slurm/uid_0/job_1").rmdir()
            assert finder.changed()
            (tmp_path / "cpuacct/slurm/uid_0/job_1").mkdir()
            assert finder.changed()
            (cgroup,) = finder.jobs()
            (tmp_path / cgroup.key).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "cpuacct" / cgroup.key / "step_1").mkdir()
            assert finder.changed()
            (tmp_path / "cpuacct" / cgroup.key / "step_1").rmdir()
    finally:
        finder.close()


def test_a_lost_event_means_a_new_look_and_new_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    v1(tmp_path, "slurm/uid_0/job_1", ("cpuacct",))
    finder = CgroupWatcher(tmp_path)
    try:
        finder.jobs()
        job = tmp_path / "cpuacct/slurm/uid_0/job_1"
        # More than the queue holds (fs.inotify.max_queued_events).
        limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        for _ in range(limit // 2 + 10):
            job.rmdir()
            job.mkdir()
            finder._inotify.watch(job)
        assert finder.changed()
        (cgroup,) = finder.jobs()
        assert cgroup.inodes["cpuacct"] == job.stat().st_ino
        finder.changed()
        (job / "step_0").mkdir()
        assert finder.changed()
    finally:
        finder.close()


def test_without_room_for_watches_it_says_so_and_finds_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    v1(tmp_path, "slurm/uid_0/job_1")
    finder = CgroupWatcher(tmp_path)

    class Full:
        def inotify_add_watch(self, *arguments: object) -> int:
            return -1

    try:
        assert not finder.blind
        with monkeypatch.context() as patched:
            patched.setattr(finder._inotify, "_library", Full())
            patched.setattr(cgroup_watcher.ctypes, "get_errno", lambda: errno.ENOSPC)
            assert [cgroup.job_id for cgroup in finder.jobs()] == [1]
            assert finder.blind
        # Others have gone, and there is room again.
        assert [cgroup.job_id for cgroup in finder.jobs()] == [1]
        assert not finder.blind
    finally:
        finder.close()


def test_proc_is_never_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    v1(tmp_path, "slurm/uid_0/job_1/step_0")
    listed: list[str] = []

    def scan(path: str | Path) -> "os._ScandirIterator[str]":
        listed.append(str(path))
        return real(path)  # type: ignore[return-value]

    real = os.scandir
    monkeypatch.setattr(os, "scandir", scan)
    found(tmp_path)
    assert listed
    assert not [path for path in listed if path.startswith("/proc")]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_folders_that_vanish_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Each read of a directory fails once, as if it had gone just before."""
    if version == "v1":
        v1(tmp_path, "slurm/uid_0/job_1/step_0/task_0", ("cpuacct", "memory", "freezer"))
    else:
        v2(tmp_path, "system.slice/slurmstepd.scope/job_1/step_0/user")
    real = os.scandir
    fault = {"at": 0, "calls": 0, "number": 0}

    def scan(path: str | Path) -> object:
        fault["calls"] += 1
        if fault["calls"] == fault["at"]:
            raise OSError(fault["number"], os.strerror(fault["number"]), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert len(found(tmp_path)) == 1
    total = fault["calls"]
    for number in (errno.ENOENT, errno.ENODEV):
        for position in range(1, total + 1):
            fault.update(at=position, calls=0, number=number)
            assert len(found(tmp_path)) <= 1
            assert fault["calls"] >= position
