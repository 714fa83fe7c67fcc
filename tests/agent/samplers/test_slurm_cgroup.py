"""SlurmCGroup on both versions: right meanings, and no reading that fails as a whole."""

import shutil
from unittest import mock

import pytest

from jobsight.agent.probes.cgroup_files import CgroupGone
from jobsight.agent.samplers.cgroup_memory import SlurmCGroup, SlurmCGroup2
from jobsight.errors import ConfigError
from jobsight.model import MISSING
from tests.agent.samplers.jobs import V1, V2, Job, write


def test_v1_without_swap_accounting(job: Job) -> None:
    job.on_v1()
    sampler = SlurmCGroup(node=job.node, cgroup_base="/cgroup")
    found = sampler.document(job.view)
    assert found == {
        "cpus": 2,
        "memory_usage": "7708672",
        "memory_used": str(7708672 - 600000),
        "memory_anonymous": "5000000",
        "memory_file": "600000",
        "memory_shared": "400000",
        "memory_limit": "314572800",
        "memory_max_usage": "9523200",
        "memory_swap": "4096",
        "memory_oom_kills": "2",
        "memory_usage_average": 7708672.0,
    }
    assert sampler.columns(job.view) == {
        "memory.limit": 314572800,
        "memory.peak": 9523200,
        "memory.oom_kills": 2,
        "memory.kernel": 970752,
    }


def test_v2_reports_peaks_as_peaks_and_swap_as_swap(job: Job) -> None:
    job.on_v2()
    sampler = SlurmCGroup2(node=job.node)
    found = sampler.document(job.view)
    assert found is not None
    assert found["cpus"] == 2
    assert found["memory_max_usage"] == "66699264"
    assert found["memory_limit"] == "524288000"
    assert found["memory_swap"] == "8192"
    assert sampler.columns(job.view)["memory.kernel"] == 900000
    assert sampler.name == "sams.sampler.SlurmCGroup2"


def test_no_limit_is_no_number_and_an_old_kernel_gets_the_highest_sample(job: Job) -> None:
    files = {**V2, "memory.max": "max\n"}
    del files["memory.peak"], files["memory.swap.current"]
    job.on_v2(files)
    sampler = SlurmCGroup2(node=job.node)
    sampler.document(job.view)
    write(job.root / "cgroup", {"memory.current": "1000\n"})
    job.clock.go(10)
    found = sampler.document(job.view)
    assert found is not None
    assert "memory_limit" not in found
    assert found["memory_max_usage"] == "66174976"
    assert found["memory_usage"] == "1000"
    assert found["memory_usage_average"] == pytest.approx((66174976 + 1000) / 2)
    assert found["memory_swap"] == "0"
    assert sampler.coverage(job.view)["memory peak"].quality == "estimate"
    assert set(sampler.columns(job.view)) == {"memory.oom_kills", "memory.kernel"}


def test_the_last_word_is_there_after_the_cgroup_is_gone(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.on_v1()
    sampler = SlurmCGroup(node=job.node)
    sampler.columns(job.view)
    sampler.document(job.view)
    job.clock.go(30)
    write(job.root / "cgroup", {"memory/memory.usage_in_bytes": "1708672\n"})
    sampler.document(job.view)
    assert job.view.counters is not None
    gone = CgroupGone(19, "the cgroup is gone", "/x")
    for name in ("memory", "memory_peaks"):
        monkeypatch.setattr(job.view.counters, name, mock.Mock(side_effect=gone))
    shutil.rmtree(job.root / "cgroup")
    job.clock.go(30)
    assert sampler.document(job.view) is None
    assert sampler.columns(job.view)["memory.peak"] == MISSING
    found = sampler.final(job.view)
    assert found["memory_usage"] == "1708672"
    assert found["memory_max_usage"] == "9523200"
    assert found["memory_used_max"] == str(7708672 - 600000)
    assert found["memory_usage_average"] == pytest.approx((7708672 + 1708672) / 2)
    assert "memory" in sampler.errors.causes
    sampler.close()


def test_a_job_without_a_cgroup(job: Job) -> None:
    sampler = SlurmCGroup(node=job.node)
    assert sampler.columns(job.view) == {}
    assert sampler.document(job.view) is None
    assert sampler.final(job.view) == {}


def test_odd_contents_are_failures_of_one_figure(job: Job) -> None:
    job.on_v1({**V1, "cpuset/cpuset.cpus": "[N/A]\n", "memory/memory.kmem.usage_in_bytes": ""})
    sampler = SlurmCGroup(node=job.node)
    found = sampler.document(job.view)
    assert found is not None
    assert "cpus" not in found
    assert found["memory_usage"] == "7708672"
    assert sampler.columns(job.view)["memory.kernel"] == MISSING
    assert "cores" in sampler.errors.causes


def test_what_is_averaged_must_be_known() -> None:
    with pytest.raises(ConfigError, match="memory_use'; expected memory_usage"):
        SlurmCGroup(metrics_to_average=["memory_use"])
