"""The counters of a job's steps: trees of both versions, steps and tasks that come and go."""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.agent.probes.cgroup import SlurmProbe
from jobsight.agent.probes.cgroup_files import CgroupFiles, CgroupGone
from jobsight.agent.probes.slurm_cgroup import SlurmCounters, StepCgroup
from jobsight.agent.processes.executables import ExecutableNames
from jobsight.agent.processes.process import Process, Segment
from jobsight.agent.processes.tracker import ProcessTracker
from tests.waiting import wait_until

CPUS = 128


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def cpuacct(directory: Path, used: int) -> None:
    """As on a node of 128 cores, with the lists per CPU."""
    write(
        directory,
        cpuacct__usage=f"{used}\n",
        cpuacct__stat=f"user {used // 20_000_000}\nsystem {used // 20_000_000}\n",
        cpuacct__usage_percpu=" ".join([str(used // CPUS)] * CPUS) + "\n",
        cgroup__procs="",
    )


def memory(directory: Path, used: int, peak: int) -> None:
    write(
        directory,
        memory__usage_in_bytes=f"{used}\n",
        memory__max_usage_in_bytes=f"{peak}\n",
        memory__limit_in_bytes=f"{2**63 - 4096}\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
        memory__stat=f"total_cache 0\ntotal_rss {used}\ntotal_shmem 0\ntotal_swap 0\n",
        cgroup__procs="",
    )


def unified(directory: Path, used: int, used_memory: int | None = None) -> None:
    files = {
        "cpu__stat": f"usage_usec {used // 1000}\nuser_usec {used // 1000}\nsystem_usec 0\n"
        "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
        "cgroup__procs": "",
    }
    if used_memory is not None:
        files |= {
            "memory__current": f"{used_memory}\n",
            "memory__peak": f"{used_memory * 2}\n",
            "memory__max": "max\n",
            "memory__swap__current": "0\n",
            "memory__events": "low 0\nhigh 0\nmax 0\noom 1\noom_kill 1\n",
            "memory__stat": f"anon {used_memory}\nfile 0\nshmem 0\n",
        }
    write(directory, **files)


@pytest.fixture
def v1(tmp_path: Path) -> dict[str, Path]:
    directories = {name: tmp_path / name / "slurm/uid_5/job_1" for name in ("cpuacct", "memory")}
    cpuacct(directories["cpuacct"], 1_000_000_000)
    memory(directories["memory"], 4096, 8192)
    for step, whole, tasks in (("batch", 600, (500,)), ("0", 400, (200, 150))):
        cpuacct(directories["cpuacct"] / f"step_{step}", whole * 1_000_000)
        memory(directories["memory"] / f"step_{step}", 2048, 4096)
        for number, used in enumerate(tasks):
            cpuacct(directories["cpuacct"] / f"step_{step}" / f"task_{number}", used * 1_000_000)
    return directories


@pytest.fixture
def v2(tmp_path: Path) -> dict[str, Path]:
    job = tmp_path / "job_1"
    unified(job, 1_000_000_000, 1 << 20)
    unified(job / "step_batch", 1_000_000_000)
    unified(job / "step_batch/user", 900_000_000, 1 << 19)
    unified(job / "step_batch/user/task_0", 900_000_000)
    unified(job / "step_batch/slurm", 100_000_000)
    return {"unified": job}


def test_steps_and_tasks_of_v1(v1: dict[str, Path]) -> None:
    counters = SlurmCounters(v1)
    cpu = counters.cpu()
    assert cpu is not None
    used = {step.step: (step.tasks, step.cpu_time, step.cpu_overhead) for step in counters.steps()}
    assert used == {"batch": (1, 500_000_000, 100_000_000), "0": (2, 350_000_000, 50_000_000)}
    # The daemons' share is not the user's.
    assert (cpu.time, counters.overhead) == (850_000_000, 150_000_000)
    assert counters.memory_peaks().peak == 8192
    assert {step.memory_peak for step in counters.steps()} == {4096}
    counters.close()


def test_steps_of_v2(v2: dict[str, Path]) -> None:
    counters = SlurmCounters(v2)
    cpu = counters.cpu()
    assert cpu is not None
    (step,) = counters.steps()
    assert (step.cpu_time, step.cpu_overhead) == (900_000_000, 100_000_000)
    assert (step.memory_peak, step.oom_kills) == (1 << 20, 1)
    assert (cpu.time, counters.overhead) == (900_000_000, 100_000_000)
    assert (counters.memory_peaks().peak, counters.memory_peaks().limit) == (1 << 21, None)
    counters.close()


def test_a_step_of_v2_whose_folders_are_being_made_is_not_over(v2: dict[str, Path]) -> None:
    new = v2["unified"] / "step_0"
    unified(new, 0)
    counters = SlurmCounters(v2)
    counters.cpu()
    unified(new / "slurm", 0)
    unified(new / "user", 50_000_000)
    counters.refresh()
    counters.cpu()
    step = {step.step: step for step in counters.steps()}["0"]
    assert (step.ended, step.cpu_time) == (False, 50_000_000)
    counters.close()


def test_a_task_that_goes_before_its_step_keeps_its_use(
    v1: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = SlurmCounters(v1)
    counters.cpu()
    gone = v1["cpuacct"] / "step_0/task_1"
    shutil.rmtree(gone)
    vanish(monkeypatch, gone)
    counters.refresh()
    cpuacct(v1["cpuacct"] / "step_0/task_0", 220_000_000)
    counters.cpu()
    step = {step.step: step for step in counters.steps()}["0"]
    assert (step.ended, step.cpu_time, step.tasks) == (False, 370_000_000, 2)
    counters.close()


def test_an_ended_step_keeps_its_last_reading(v1: dict[str, Path]) -> None:
    counters = SlurmCounters(v1)
    counters.cpu()
    for directory in v1.values():
        shutil.rmtree(directory / "step_0")
    counters.refresh()
    cpu = counters.cpu()
    assert cpu is not None
    step = {step.step: step for step in counters.steps()}["0"]
    assert (step.ended, step.cpu_time) == (True, 350_000_000)
    assert cpu.time == 850_000_000
    counters.close()


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(
    "number", [errno.ENODEV, errno.ENOENT, errno.EACCES, errno.EMFILE], ids=errno.errorcode.get
)
def test_every_read_may_fail(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, version: str, number: int
) -> None:
    """A figure that could not be read is failed or missing, never zero, and nothing is raised
    but the word that the cgroup is gone."""
    directories = request.getfixturevalue(version)
    fault = {"at": 0, "calls": 0}

    def wrapped(real: object) -> object:
        def call(*arguments: object, **named: object) -> object:
            fault["calls"] += 1
            if fault["calls"] == fault["at"]:
                raise OSError(number, os.strerror(number), str(arguments[0]))
            return real(*arguments, **named)  # type: ignore[operator]

        return call

    for name in ("open", "pread"):
        monkeypatch.setattr(os, name, wrapped(getattr(os, name)))
    for position in range(1, 60):
        fault.update(at=0, calls=0)
        probe = SlurmProbe(
            SlurmCounters(directories), ProcessTracker(ExecutableNames()), events=True
        )
        fault["at"] = position
        with contextlib.suppress(CgroupGone):
            assert probe.sample()["cpu.time"] != 0
        fault["at"] = 0
        reached = fault["calls"] >= position
        probe.sample()
        totals = probe.totals()
        assert totals.cpu_time in (850_000_000, 900_000_000)
        assert probe.report(0).coverage["cpu"].quality == "exact"
        probe.close()
        if not reached:
            break


def vanish(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Reads through kept descriptors fail as those of a removed cgroup do."""
    real = CgroupFiles.read

    def read(self: CgroupFiles, name: str, size: int = 4096) -> bytes:
        if self.directory == directory:
            self.close()
        return real(self, name, size)

    monkeypatch.setattr(CgroupFiles, "read", read)


def test_a_task_that_goes_first_leaves_its_time_to_the_user(tmp_path: Path) -> None:
    """Slurm removes the directory of a task before that of its step; slurmstepd gets none of it."""
    step = tmp_path / "cpuacct" / "step_0"
    task = step / "task_0"
    task.mkdir(parents=True)
    for directory, used in ((step, 1_000), (task, 990)):
        (directory / "cpuacct.usage").write_text(f"{used}\n")
    cgroup = StepCgroup("0", {"cpuacct": step}, SlurmCounters.V1)
    cgroup.refresh({"cpuacct": step})
    cgroup.read()
    assert (cgroup.use.cpu_time, cgroup.use.cpu_overhead) == (990, 10)
    (task / "cpuacct.usage").unlink()
    task.rmdir()
    (step / "cpuacct.usage").write_text("5000\n")
    cgroup.close()
    cgroup.read()
    assert (cgroup.use.cpu_time, cgroup.use.cpu_overhead) == (4_990, 10)


# Fault 2: v1 counts an OOM kill in the cgroup of the killed process only.
@pytest.mark.parametrize("kills", [0, 2])
@pytest.mark.parametrize("emptied", [True, False])
def test_oom_kills_are_those_of_the_tasks(v1: dict[str, Path], kills: int, emptied: bool) -> None:
    task = v1["memory"] / "step_batch" / "task_0"
    memory(task, 1024, 2048)
    (task / "memory.oom_control").write_text(f"oom_kill_disable 0\noom_kill {kills}\n")
    counters = SlurmCounters(v1)
    counters.set_members({"batch": 0 if emptied else 1, "0": 0})
    counters.cpu()
    assert counters.memory_peaks().oom_kills == kills
    for controller in ("memory", "cpuacct"):
        shutil.rmtree(v1[controller] / "step_batch")
    counters.refresh()
    (batch,) = [step for step in counters.steps() if step.step == "batch"]
    # A zero that was read while a process was alive is no count.
    told = kills if kills or emptied else None
    assert batch.oom_kills == told
    assert counters.memory_peaks().oom_kills == told


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the name and the title of slurmstepd."""
    program = tmp_path / "slurmstepd"
    shutil.copy("/bin/sleep", program)
    title = "slurmstepd: [1.batch]"
    with subprocess.Popen([title, "60"], executable=program) as process:
        # The kernel sets the command name a moment after the parent may continue.
        name = Path(f"/proc/{process.pid}/comm")
        wait_until(lambda: name.read_text() == "slurmstepd\n")
        yield process
        process.kill()


# Fault 1: slurmstepd was not found, so that the first processes of a step were missed.
@pytest.mark.parametrize("place", ["freezer", "freezer/step_batch", "memory/step_batch"])
def test_slurmstepd_is_found_wherever_slurm_has_put_it(
    v1: dict[str, Path], daemon: subprocess.Popen[bytes], place: str
) -> None:
    v1["freezer"] = v1["cpuacct"].parents[3] / "freezer/slurm/uid_5/job_1"
    write(v1["freezer"], cgroup__procs="")
    write(v1["freezer"] / "step_batch", cgroup__procs="")
    controller, _, below = place.partition("/")
    (v1[controller] / below / "cgroup.procs").write_text(f"{daemon.pid}\n")
    assert SlurmCounters(v1).daemons() == [("batch", daemon.pid)]


# Fault 4: the sleep by which Slurm keeps the extern step open is not the user's.
def test_the_extern_step_is_overhead_until_a_user_s_process_is_in_it(v1: dict[str, Path]) -> None:
    for used, step in ((1_300_000_000, ""), (300_000_000, "step_extern")):
        cpuacct(v1["cpuacct"] / step, used)
    cpuacct(v1["cpuacct"] / "step_extern/task_0", 300_000_000)
    counters = SlurmCounters(v1)
    for _ in range(2):
        reading = counters.cpu()
        assert reading is not None
        # 50 ms of slurmstepd in step 0, and 100 ms in the batch step.
        assert (reading.time, counters.overhead) == (850_000_000, 450_000_000)
    counters.has_extern_user = True
    reading = counters.cpu()
    assert reading is not None
    assert (reading.time, counters.overhead) == (1_150_000_000, 150_000_000)


# Fault 24: the command name of each of a user's processes was read to find slurmstepd.
def test_the_processes_of_tasks_are_not_examined(
    v1: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (v1["cpuacct"] / "step_batch/task_0/cgroup.procs").write_text("11\n12\n")
    (v1["memory"] / "step_batch/cgroup.procs").write_text("10\n11\n12\n")
    examined: list[int] = []

    def is_daemon(pid: int) -> bool:
        examined.append(pid)
        return pid == 10

    monkeypatch.setattr("jobsight.agent.probes.slurm_cgroup._is_daemon", is_daemon)
    assert SlurmCounters(v1).daemons() == [("batch", 10)]
    assert examined == [10]


# Fault 1: the part of a running job was called exact until the cgroup of the step was removed.
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_step_that_ran_unseen_is_named_while_its_cgroup_remains(
    version: str, request: pytest.FixtureRequest
) -> None:
    directories = request.getfixturevalue(version)
    probe = SlurmProbe(SlurmCounters(directories), ProcessTracker(ExecutableNames()), events=True)
    coverage = probe.report(0).coverage
    assert coverage["cpu"].quality == "exact"
    assert coverage["executables"].quality == "estimate"
    assert "batch) were not observed" in coverage["executables"].reason
    # With an observed process of each step it is.
    for step in probe.counters.steps():
        observe(probe, step.step)
    assert probe.report(0).coverage["executables"].quality == "exact"
    probe.close()


def observe(probe: SlurmProbe, step: str, *, awaits_exec: bool = False) -> None:
    """A process of a step has come and gone."""
    process = Process(4_000_000, probe.usage, Segment(None, 0, executed=not awaits_exec), step)
    process.awaits_exec = awaits_exec
    probe.usage.join(process)
    probe.usage.leave(process)


# A child of slurmstepd that never called exec passed for the program of its step.
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_child_of_the_launcher_is_no_observed_program(
    version: str, request: pytest.FixtureRequest
) -> None:
    directories = request.getfixturevalue(version)
    probe = SlurmProbe(SlurmCounters(directories), ProcessTracker(ExecutableNames()), events=True)
    for step in probe.counters.steps():
        observe(probe, step.step, awaits_exec=True)
    coverage = probe.report(0).coverage["executables"]
    assert coverage.quality == "estimate"
    assert "batch) were not observed" in coverage.reason
    probe.close()


# Nothing at all was listed of a job of one short step, and its empty list was called exact.
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_job_that_ended_before_its_first_listing_is_not_exact(
    version: str, request: pytest.FixtureRequest
) -> None:
    directories: dict[str, Path] = request.getfixturevalue(version)
    for directory in directories.values():
        for step in directory.glob("step_*"):
            shutil.rmtree(step)
    tracker = ProcessTracker(ExecutableNames())
    probe = SlurmProbe(SlurmCounters(directories), tracker, events=True)
    probe.read_counters()
    running = probe.report(0).coverage["executables"]
    assert running.quality == "exact"
    probe.close()
    ended = probe.report(0)
    assert ended.coverage["executables"].quality == ended.coverage["cpu"].quality == "estimate"
    assert "before its processes were observed" in ended.coverage["executables"].reason
    assert ended.totals.cpu_time == 1_000_000_000


def test_a_node_with_the_extern_step_alone_is_exact(v1: dict[str, Path]) -> None:
    for directory in v1.values():
        for step in directory.glob("step_*"):
            shutil.rmtree(step)
    cpuacct(v1["cpuacct"] / "step_extern" / "task_0", 2_000_000)
    cpuacct(v1["cpuacct"] / "step_extern", 2_000_000)
    cpuacct(v1["cpuacct"], 2_000_000)
    probe = SlurmProbe(SlurmCounters(v1), ProcessTracker(ExecutableNames()), events=True)
    probe.read_counters()
    probe.close()
    assert probe.report(0).coverage["executables"].quality == "exact"


def test_a_step_without_tasks_has_run_nothing_unseen(v1: dict[str, Path]) -> None:
    """The CPU time of a new step is that of slurmstepd, which prepares it."""
    for step in ("batch", "0"):
        for task in (v1["cpuacct"] / f"step_{step}").glob("task_*"):
            shutil.rmtree(task)
    probe = SlurmProbe(SlurmCounters(v1), ProcessTracker(ExecutableNames()), events=True)
    assert probe.report(0).coverage["executables"].quality == "exact"
    probe.close()


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_steps_have_the_gpu_time_of_their_processes(
    request: pytest.FixtureRequest, version: str
) -> None:
    counters = SlurmCounters(request.getfixturevalue(version))
    probe = SlurmProbe(counters, ProcessTracker(ExecutableNames()), events=True)
    assert {(step.gpu_time, step.gpu_memory_peak) for step in probe.steps()} == {(None, None)}
    first, *others = [step.step for step in probe.steps()]
    probe.usage.step_gpu_time[first] += 7
    probe.usage.step_gpu_memory[first] = 8
    found = {step.step: (step.gpu_time, step.gpu_memory_peak) for step in probe.steps()}
    # A step that was never seen on a GPU has used none.
    assert found == {first: (7, 8)} | dict.fromkeys(others, (0, 0))
    probe.close()
