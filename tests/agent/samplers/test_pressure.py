"""Pressure: the job's own directory on v2, the groups of its processes otherwise."""

import shutil

import pytest

from jobsight.agent.samplers.pressure import Pressure
from jobsight.model import MISSING
from tests.agent.samplers.jobs import V2, Job, write

SOME = "some avg10={0} avg60=0.00 avg300=0.00 total={1}\n"


def test_the_folder_of_the_job(job: Job) -> None:
    job.on_v2()
    sampler = Pressure(node=job.node)
    found = sampler.document(job.view)
    assert found is not None
    assert found["cpu"]["some"] == {"avg10": 5.55, "avg60": 2.59, "avg300": 0.62, "total": 1973606}
    assert sampler.columns(job.view) == {
        "pressure.cpu": 1973606000,
        "pressure.memory": 0,
        "pressure.memory_full": 0,
        "pressure.io": 10000,
        "pressure.io_full": 5000,
    }
    job.clock.go(10)
    write(job.root / "cgroup", {"cpu.pressure": SOME.format("1.00", 1973606 + 5_000_000)})
    final = sampler.final(job.view)
    assert final["cpu"]["some"]["avg10"] == 1.0
    assert final["cpu"]["some"]["avg10_max"] == 5.55
    assert final["cpu"]["some"]["average"] == pytest.approx(50.0)
    assert final["cpu"]["full"]["total"] == 1409751
    assert sampler.coverage(job.view)["pressure"].quality == "exact"
    sampler.close()


def test_a_kernel_without_pressure_says_so(job: Job) -> None:
    job.on_v2({name: text for name, text in V2.items() if "pressure" not in name})
    sampler = Pressure(node=job.node)
    assert sampler.columns(job.view) == {}
    assert sampler.document(job.view) is None
    assert sampler.final(job.view) == {}
    assert sampler.coverage(job.view)["pressure"].quality == "missing"
    assert sampler.errors.causes == {}


def test_a_broken_file_is_one_missing_figure(job: Job) -> None:
    job.on_v2()
    sampler = Pressure(node=job.node)
    sampler.columns(job.view)
    write(job.root / "cgroup", {"io.pressure": "nonsense\n"})
    row = sampler.columns(job.view)
    assert row["pressure.io"] == MISSING
    assert row["pressure.cpu"] == 1973606000
    assert list(sampler.errors.causes) == ["io.pressure"]


def test_groups_of_processes_come_and_go_and_the_sum_never_falls(job: Job) -> None:
    base = job.root / "unified"
    for number in (1, 2):
        write(base, {f"step_{number}/cpu.pressure": SOME.format(number, 100 * number)})
        write(job.root / "proc", {f"{number}/cgroup": f"4:memory:/x\n0::/step_{number}\n"})
        job.process(number)
    write(job.root / "proc", {"3/cgroup": "0::/\n", "4/cgroup": "0::/../etc\n"})
    write(base, {"cpu.pressure": SOME.format("99.00", 10**9)})
    job.process(3)
    job.process(4)
    job.process(5)
    sampler = Pressure(node=job.node, cgroup_base=str(base), every=1)
    found = sampler.document(job.view)
    # Neither the root, nor what lies outside, nor a process that is gone.
    assert found == {"cpu": {"some": {"avg10": 2.0, "avg60": 0.0, "avg300": 0.0, "total": 300}}}
    shutil.rmtree(base / "step_2")
    del job.view.usage.members[2]
    assert sampler.columns(job.view) == {"pressure.cpu": 300_000}
    shutil.rmtree(base / "step_1")
    job.view.usage.members.clear()
    assert sampler.final(job.view)["cpu"]["some"]["total"] == 300
    assert sampler.errors.causes == {}


def test_the_mount_is_found_when_the_settings_do_not_name_it(job: Job) -> None:
    base = job.root / "unified"
    write(base, {"step/cpu.pressure": SOME.format("1.00", 7)})
    write(job.root / "proc", {"self/mounts": f"a /a tmpfs rw\ncgroup2 {base} cgroup2 rw 0 0\n"})
    write(job.root / "proc", {"1/cgroup": "0::/step\n"})
    job.process(1)
    assert Pressure(node=job.node).columns(job.view) == {"pressure.cpu": 7000}
