"""The counters of a job's cgroup: recorded trees of real Slurm nodes, and this kernel's own."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.agent.launch.cgroup import OwnCgroup, create_cgroup, find_hierarchies
from jobsight.agent.probes.cgroup_files import CgroupGone, CgroupV1, CgroupV2, CpuReading

DATA = Path(__file__).parents[2] / "data" / "cgroup"
JOB_V2 = "system.slice/node1_slurmstepd.scope/job_2"
JOB_V1 = "memory/slurm_node1/uid_20001/job_57"


def laid_out(values: Path, root: Path) -> None:
    """Make files again of lines such as "/sys/fs/cgroup/PATH = CONTENT"."""
    for line in values.read_text().splitlines():
        path, _, content = line.partition(" = ")
        file = root / path.removeprefix("/sys/fs/cgroup/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content.strip() + "\n")


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    laid_out(DATA / "v2" / "values.txt", tmp_path)
    directory = tmp_path / JOB_V2
    shutil.copy(DATA / "v2" / "memory.stat", directory)
    return directory


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    laid_out(DATA / "v1" / "memory-values.txt", tmp_path)
    directory = tmp_path / JOB_V1
    (directory / "memory.stat").write_text(
        "cache 1\nrss 2\nshmem 3\ntotal_cache 5000000\ntotal_rss 2000000\ntotal_shmem 1000000\n"
    )
    return directory


def test_the_cpu_time_of_a_recorded_v2_job(v2: Path) -> None:
    cgroup = CgroupV2(v2)
    cpu = cgroup.cpu()
    assert cpu is not None
    assert cpu.time == 5_129_646_000
    assert cpu.user + cpu.system == cpu.time
    assert cpu.user == pytest.approx(3_006_893_000, abs=2000)
    cgroup.close()


def test_the_memory_of_a_recorded_v2_job(v2: Path) -> None:
    cgroup = CgroupV2(v2)
    memory, peaks = cgroup.memory(), cgroup.memory_peaks()
    assert memory is not None
    assert (memory.current, memory.anonymous, memory.file) == (66174976, 55156736, 4096)
    assert memory.used == 66174976 - 4096
    assert (peaks.peak, peaks.limit, peaks.swap_peak, peaks.oom_kills) == (
        66699264,
        524288000,
        None,
        0,
    )
    cgroup.close()


def test_a_v2_step_without_a_limit(v2: Path) -> None:
    cgroup = CgroupV2(v2 / "step_0")
    assert cgroup.memory_peaks().limit is None
    cgroup.close()


def test_an_older_kernel_keeps_no_peak(v2: Path) -> None:
    (v2 / "memory.peak").unlink()
    cgroup = CgroupV2(v2)
    assert cgroup.memory_peaks().peak is None
    cgroup.close()


def test_a_v2_cgroup_without_the_memory_controller(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nuser_usec 0\nsystem_usec 0\n")
    cgroup = CgroupV2(tmp_path)
    assert cgroup.cpu() == CpuReading(5000, 2500, 2500)
    assert cgroup.memory() is None
    assert cgroup.memory_peaks() == (None, None, None, None)
    cgroup.close()


def test_shared_memory_counts_as_used_on_both_versions(v1: Path, v2: Path) -> None:
    (v2 / "memory.current").write_text("7708672\n")
    (v2 / "memory.stat").write_text("anon 2000000\nfile 5000000\nshmem 1000000\n")
    one, two = CgroupV1(None, v1), CgroupV2(v2)
    first, second = one.memory(), two.memory()
    assert first is not None
    assert second is not None
    assert first == second
    assert first.used == 7708672 - 4_000_000
    assert first.shared == 1_000_000
    one.close()
    two.close()


def test_the_marks_of_a_recorded_v1_job(v1: Path) -> None:
    cgroup = CgroupV1(None, v1)
    assert cgroup.cpu() is None
    assert cgroup.memory_peaks() == (9523200, 314572800, None, 0)
    cgroup.close()
    task = CgroupV1(None, v1 / "step_0" / "task_0")
    assert task.memory_peaks().limit is None
    task.close()


def test_the_processes_of_a_job_are_those_of_all_its_steps(v2: Path) -> None:
    (v2 / "cgroup.procs").write_text("")
    (v2 / "step_0" / "cgroup.procs").write_text("12\n")
    (v2 / "step_0" / "user" / "task_0" / "cgroup.procs").write_text("13\n14\n")
    cgroup = CgroupV2(v2)
    assert sorted(cgroup.processes()) == [12, 13, 14]
    cgroup.close()


def test_a_removed_folder_is_gone(v2: Path) -> None:
    cgroup = CgroupV2(v2)
    shutil.rmtree(v2)
    with pytest.raises(CgroupGone):
        cgroup.cpu()
    assert cgroup.processes() == []


def test_a_job_needs_a_directory() -> None:
    with pytest.raises(ValueError, match="at least one hierarchy"):
        CgroupV1(None, None)


@pytest.mark.parametrize(
    ("version", "controller", "place"),
    [
        ("v1", "memory", "slurm_node1/uid_20001/job_57/step_0/task_0"),
        ("v1", "cpuacct", "slurm_node1/uid_20001/job_57/step_0/task_0"),
    ],
)
def test_where_a_recorded_process_stands(
    tmp_path: Path, version: str, controller: str, place: str
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
        "cgroup /cg/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
        "cgroup /cg/memory cgroup rw,relatime,memory 0 0\n"
        "cgroup2 /cg/unified cgroup2 rw 0 0\n"
    )
    found = find_hierarchies(mounts, DATA / version / "proc-pid-cgroup.txt")
    mount = "/cg/cpu,cpuacct" if controller == "cpuacct" else "/cg/memory"
    assert found.v1[controller] == Path(mount) / place
    assert found.v2 == Path("/cg/unified")


# What follows makes real cgroups.


@pytest.fixture
def own() -> Iterator[OwnCgroup]:
    made = create_cgroup(f"jobsight-test-{os.getpid()}")
    assert made is not None
    yield made
    made.kill_leftovers()
    made.remove()


@pytest.mark.root
def test_the_counter_of_a_real_cgroup(own: OwnCgroup) -> None:
    before = own.cgroup.cpu()
    script = (
        "import time; x = bytearray(32 * 2**20); end = time.process_time() + 0.2\n"
        "while time.process_time() < end: pass"
    )
    child = subprocess.Popen(["/usr/bin/python3", "-c", script], preexec_fn=own.enter)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    after = own.cgroup.cpu()
    assert before is not None
    assert after is not None
    assert before.time == 0
    # What was used before entering is not the cgroup's. It is brought up to date some microseconds
    # after the process has been waited for.
    assert 0.2e9 <= after.time <= (usage.ru_utime + usage.ru_stime) * 1e9 + 10e6
    peak = own.cgroup.memory_peaks().peak
    assert peak is None or peak >= 32 * 2**20


@pytest.mark.root
def test_processes_are_listed_and_gone(own: OwnCgroup) -> None:
    child = subprocess.Popen(["/bin/sleep", "60"], preexec_fn=own.enter)
    assert own.cgroup.processes() == [child.pid]
    child.kill()
    child.wait()
    assert own.cgroup.processes() == []


@pytest.mark.root
def test_kept_descriptors_of_a_removed_cgroup_say_so(own: OwnCgroup) -> None:
    assert own.cgroup.cpu() is not None
    for directory in own.directories.values():
        directory.rmdir()
    with pytest.raises(CgroupGone):
        own.cgroup.cpu()
