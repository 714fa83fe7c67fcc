"""Cores, open files and threads, and petricore's figures made of them."""

import os
from pathlib import Path
from unittest import mock

import pytest

from jobsight.agent.exporter.job_series import petricore_values
from jobsight.agent.samplers.cpu import CoreTimes
from jobsight.agent.samplers.files import Files
from jobsight.agent.samplers.processes import Threads
from jobsight.cli.agent import sampler_plans
from jobsight.errors import ConfigError
from jobsight.model import MISSING, SECOND
from tests.agent.samplers.jobs import MIB, V1, V2, Job, stat_line, write

TICK = 10_000_000


def test_v1_counts_by_core_exactly(job: Job) -> None:
    job.on_v1()
    cores = CoreTimes(node=job.node)
    job.view.row = {"cpu.time": 5 * SECOND}
    assert cores.columns(job.view) == {"cores.0.time": 10**9, "cores.1.time": 4 * 10**9}
    assert cores.coverage(job.view)["cores"].quality == "exact"
    assert cores.in_use is None
    job.clock.go(10)
    job.view.row = {"cpu.time": 20 * SECOND}
    assert cores.document(job.view) == {"0": 1.0, "1": 4.0}
    assert cores.in_use == pytest.approx(1.5)
    (job.root / "cgroup/cpuacct/cpuacct.usage_percpu").write_text("[N/A]")
    assert set(cores.columns(job.view).values()) == {MISSING}
    assert cores.final(job.view) == {"0": 1.0, "1": 4.0}
    cores.close()


def test_cores_in_use_are_by_the_time_between_the_readings_of_the_counter(job: Job) -> None:
    """Whatever else is looked at in between may take long in one round and not in the other."""
    job.on_v1()
    cores = CoreTimes(node=job.node)
    start = job.clock.now
    for second, delay in ((0, 0.5), (1, 0.0), (2, 0.9)):
        job.view.row = {"cpu.time": 2 * second * SECOND}
        job.view.row_read_at = start + second * SECOND
        job.clock.now = job.view.row_read_at + round(delay * SECOND)
        cores.columns(job.view)
        assert cores.in_use == (None if second == 0 else 2.0)
    cores.close()


def test_a_job_without_a_cpuset_shows_the_cores_it_ran_on(job: Job) -> None:
    job.on_v1({name: text for name, text in V1.items() if "cpuset" not in name})
    assert set(CoreTimes(node=job.node).columns(job.view)) == {
        "cores.0.time",
        "cores.1.time",
        "cores.3.time",
    }


def test_a_node_of_128_cores(job: Job) -> None:
    job.on_v1(
        {
            **V1,
            "cpuset/cpuset.cpus": "64-127\n",
            "cpuacct/cpuacct.usage_percpu": " ".join(str(10**18 + core) for core in range(128)),
        }
    )
    row = CoreTimes(node=job.node).columns(job.view)
    assert row == {f"cores.{core}.time": 10**18 + core for core in range(64, 128)}


def test_v2_estimates_by_where_threads_were_seen_and_keeps_the_sum(job: Job) -> None:
    job.on_v2({**V2, "cpuset.cpus.effective": "0-3\n"})
    cores = CoreTimes(node=job.node, every=1)
    one, two = job.process(1), job.process(2, threads=2)
    job.process(3).polled_cpu = 7
    job.view.row = {"cpu.time": 10 * SECOND}
    assert cores.columns(job.view) == {f"cores.{n}.time": 0 for n in range(4)}
    write(job.root / "proc", {"1/stat": stat_line(1, 100, 3)})
    write(job.root / "proc", {"2/task/2/stat": stat_line(2, 300, 0, "a) b (")})
    write(job.root / "proc", {"2/task/9/stat": stat_line(9, 100, 1)})
    one.polled_cpu, two.polled_cpu = 100 * TICK, 400 * TICK
    job.view.row = {"cpu.time": 20 * SECOND}
    row = cores.columns(job.view)
    # 1 s on core 3, 3 s and 1 s of the other, and 5 s nobody saw in the same proportion.
    assert row == {
        "cores.0.time": 6 * SECOND,
        "cores.1.time": 2 * SECOND,
        "cores.2.time": 0,
        "cores.3.time": 2 * SECOND,
    }
    job.view.row = {"cpu.time": 25 * SECOND}
    assert sum(cores.columns(job.view).values()) == 10 * SECOND
    coverage = cores.coverage(job.view)["cores"]
    assert (coverage.quality, coverage.cpu_share) == ("estimate", pytest.approx(10 / 15))
    job.view.row = {"cpu.time": MISSING}
    assert set(cores.columns(job.view).values()) == {MISSING}


def test_the_estimate_is_bounded(job: Job) -> None:
    job.on_v2()
    cores = CoreTimes(node=job.node, every=1, max_reads=3)
    for pid in range(1, 11):
        job.process(pid).polled_cpu = TICK
        write(job.root / "proc", {f"{pid}/stat": stat_line(pid, 1, 0)})
    job.view.row = {"cpu.time": 0}
    with mock.patch(
        "jobsight.agent.samplers.cpu._read", side_effect=lambda path: Path(path).read_bytes()
    ) as read:
        for looks in range(1, 5):
            read.reset_mock()
            cores.columns(job.view)
            assert read.call_count == (3 if looks < 4 else 1)


def link(job: Job, pid: int, *targets: str, cwd: str = "/home/u") -> None:
    folder = job.root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True, exist_ok=True)
    if not (folder / "cwd").is_symlink():
        (folder / "cwd").symlink_to(cwd)
    for number, target in enumerate(targets):
        (folder / "fd" / str(number)).symlink_to(target)


def test_open_files_and_scratch(job: Job) -> None:
    files = Files(node=job.node, every=1, links_every=1)
    link(job, 1, "/dev/null", "pipe:[1]", "/home/u/a", "/scratch2/x")
    link(job, 2, "/home/u/a", "/home/u/b")
    job.process(1)
    job.process(2)
    job.process(3)
    assert files.columns(job.view) == {"files.open": 6, "files.scratch": 0}
    assert files.open_paths == 3
    assert files.scratch_used is False
    link(job, 4, "/scratch/u/f")
    job.process(4)
    job.clock.go(10)
    assert files.columns(job.view) == {"files.open": 7, "files.scratch": 1}
    job.view.usage.members.clear()
    job.clock.go(10)
    assert files.columns(job.view) == {"files.open": 0, "files.scratch": 0}
    final = files.final(job.view)
    assert final["scratch_used"] is True
    assert final["open_max"] == 7
    assert final["open_average"] == pytest.approx(((6 + 7) / 2 + 7 / 2) / 2)


def test_scratch_by_type_and_by_working_folder(job: Job) -> None:
    write(job.root / "proc", {"self/mountinfo": "1 0 0:1 / /fast rw - lustre s rw\n"})
    files = Files(node=job.node, scratch_types=["lustre"], scratch_prefixes=["/job/%(jobid)s"])
    link(job, 1, "/fast/f", cwd="/job/42")
    job.process(1)
    assert files.columns(job.view)["files.scratch"] == 1
    again = Files(node=job.node, scratch_prefixes=["/job/%(jobid)s"])
    assert again.columns(job.view)["files.scratch"] == 0
    assert again.scratch_used is True


def test_looking_at_links_is_bounded_and_goes_on(job: Job) -> None:
    files = Files(node=job.node, every=1, links_every=1, max_links=4, max_processes=2)
    for pid in range(1, 5):
        link(job, pid, f"/scratch/{pid}", f"/x/{pid}", "/y")
        job.process(pid)
    with mock.patch("os.readlink", side_effect=os.readlink) as readlink:
        files.columns(job.view)
    assert readlink.call_count <= 4 + 2
    assert files.open_now == 12
    assert "extrapolated" in files.coverage(job.view)["files"].reason


# Fault 24: links that are no files did not count, and thousands were read in each round.
def test_links_of_devices_and_pipes_count_for_the_bound(job: Job) -> None:
    files = Files(node=job.node, every=1, links_every=1, max_links=10)
    for pid in range(1, 21):
        link(job, pid, "/dev/null", "pipe:[1]", "socket:[2]", cwd="/")
        job.process(pid)
    with mock.patch("os.readlink", side_effect=os.readlink) as readlink:
        files.columns(job.view)
    assert readlink.call_count <= 10 + 3


def test_open_files_that_may_not_be_seen(job: Job) -> None:
    job.process(1)
    link(job, 1, "/a")
    files = Files(node=job.node, every=1, links_every=1)
    denied = PermissionError(13, "Permission denied", "/proc/1/fd")
    with mock.patch("os.listdir", side_effect=denied):
        assert "files.open" not in files.columns(job.view)
    assert files.coverage(job.view)["files"].quality == "missing"
    assert list(files.errors.causes) == ["open files"]


def test_threads_add_up_by_program(job: Job) -> None:
    threads = Threads(node=job.node, max_programs=2)
    job.process(1, b"/opt/a/app", 4)
    job.process(2, b"/opt/b/app", 3)
    job.process(3, b"/bin/sh")
    job.process(4, b"/bin/\x1b[2J")
    assert threads.document(job.view) == {
        "programs": {
            "app": {"processes": 2, "threads": 7},
            "\\x1b[2J": {"processes": 1, "threads": 1},
        }
    }
    assert threads.columns(job.view) == {}
    job.view.usage.members.clear()
    assert threads.document(job.view) is None
    assert threads.final(job.view)["programs"]["app"] == {"processes": 2, "threads": 7}


def test_states_of_threads_where_asked_for(job: Job) -> None:
    threads = Threads(node=job.node, states=True, max_threads=3)
    job.process(1, threads=4)
    for tid, state in ((1, "R"), (2, "D"), (3, "t"), (4, "S")):
        write(job.root / "proc", {f"1/task/{tid}/stat": stat_line(tid, 0, 0, "a) D (", state)})
    row = threads.columns(job.view)
    assert set(row) == {"tasks.running", "tasks.blocked"}
    found = threads.document(job.view)
    assert found is not None
    assert sum(found["states"].values()) == 3
    assert threads.coverage(job.view)["threads"].quality == "estimate"
    with pytest.raises(ConfigError, match="true or false"):
        Threads(states="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="whole number from 1 on"):
        Threads(every=0)


def test_an_agent_counts_states_by_the_name_of_a_sampler(job: Job) -> None:
    """The samplers of an agent have no settings."""
    (plan,) = sampler_plans(["states"])
    sampler = plan.make(job.view)
    sampler.node = job.node
    job.process(1, threads=2)
    for tid in (1, 2):
        write(job.root / "proc", {f"1/task/{tid}/stat": stat_line(tid, 0, 0, "a) D (", "R")})
    assert sampler.columns(job.view) == {"tasks.running": 2, "tasks.blocked": 0}


def test_every_figure_of_the_seed(job: Job) -> None:
    job.on_v1()
    job.process(1, b"/bin/app", 3)
    link(job, 1, "/scratch/f", "/home/a")
    samplers = [
        CoreTimes(node=job.node),
        Files(node=job.node, every=1, links_every=1),
        Threads(node=job.node),
    ]
    job.view.row = {
        "cpu.time": 10 * SECOND,
        "cpu.user": 7 * SECOND,
        "cpu.system": 3 * SECOND,
        "memory.used": 512 * MIB,
        "tasks.processes": 6,
        "io.read_bytes": 3 * MIB,
        "io.written_bytes": MIB // 2,
        "io.read_calls": 11,
        "io.write_calls": MISSING,
    }
    for sampler in samplers:
        sampler.columns(job.view)
    job.clock.go(10)
    job.view.row = job.view.row | {"cpu.time": 26 * SECOND}
    for sampler in samplers:
        sampler.columns(job.view)
    job.clock.go(5)
    for sampler in samplers:
        # A document between two samples must not read as a rate of nothing.
        sampler.document(job.view)
    # A figure that could not be read (the count of writes) is left out.
    assert petricore_values(job.view, samplers) == {
        "jobs_spawned_processes": 6,
        "jobs_opened_files": 2,
        "jobs_thread_count": {"app": 3},
        "jobs_system_time": 3.0,
        "jobs_user_time": 7.0,
        "jobs_uses_scratch": 1,
        "jobs_cpu_time_core": {"0": 1.0, "1": 4.0},
        "jobs_cpu_time_total": 26.0,
        "jobs_read_mb": 3.0,
        "jobs_write_mb": 0.5,
        "jobs_read_count": 11,
        "jobs_rss": 512.0,
        "jobs_cpu_percent": pytest.approx(160.0),
        "jobs_cpu_percent_per_core": pytest.approx(80.0),
    }
    assert petricore_values(job.another(7), []) == {}
