"""File systems, volumes and block devices."""

import os
import stat
from pathlib import Path

import pytest

from jobsight.agent.samplers import filesystems
from jobsight.agent.samplers.disk import IOStats
from jobsight.agent.samplers.filesystems import FSStats, Space, ZFSStats
from jobsight.agent.samplers.readings import RESULT_TIMEOUT
from jobsight.errors import ConfigError
from tests.agent.samplers.jobs import Job, write

DISK = "253 {0} dm-{0} {1} 0 {2} {3} {4} 0 {5} {6} 0 {7} {8}\n"


def test_mount_points_appear_while_the_job_runs(job: Job, tmp_path: Path) -> None:
    sampler = FSStats(
        node=job.node, mount_points=[f"{tmp_path}/scratch/job_%(jobid)s*", f"{tmp_path}/gone"]
    )
    assert sampler.document(job.view) is None
    assert sampler.errors.causes == {}
    folder = tmp_path / "scratch" / "job_42.x"
    folder.mkdir(parents=True)
    found = sampler.document(job.view)
    expected = os.statvfs(folder)
    assert found is not None
    assert list(found) == [str(folder)]
    assert found[str(folder)]["size"] == expected.f_frsize * expected.f_blocks
    row = sampler.columns(job.view)
    assert set(row) == {f"filesystem.{folder}.{name}" for name in ("size", "free", "used")} or (
        # A long temporary directory makes a name too long for a time series.
        "column" in sampler.errors.causes
    )
    folder.rmdir()
    final = sampler.final(job.view)
    assert final[str(folder)]["used_max"] >= final[str(folder)]["used"] > 0


def test_reserved_blocks_are_neither_free_nor_used(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = os.statvfs_result((4096, 4096, 100, 30, 20, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: values)
    assert filesystems.measure("/x") == Space(409600, 81920, 286720)
    sampler = FSStats(node=job.node, mount_points=["/x"])
    assert sampler.columns(job.view) == {
        "filesystem./x.size": 409600,
        "filesystem./x.free": 81920,
        "filesystem./x.used": 286720,
    }


def test_a_file_server_that_is_away_does_not_stop_the_loop(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    gate = threading.Event()
    monkeypatch.setattr(filesystems, "measure", lambda path: gate.wait(100) and Space(1, 1, 1))
    sampler = FSStats(node=job.node, mount_points=["/x"])
    sampler._background.timeout = RESULT_TIMEOUT
    assert sampler.columns(job.view) == {}
    assert sampler.columns(job.view) == {}
    assert sampler.errors.causes == {"mount_points": "a file system does not answer"}
    assert sampler.coverage(job.view)["filesystem"].quality == "failed"
    gate.set()
    assert sampler.final(job.view)["/x"]["used"] == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "mount_points is missing"),
        ({"mount_points": []}, "mount_points is missing"),
        ({"mount_points": "/scratch"}, "must be a list of texts"),
        ({"mount_points": ["%(job)s"]}, r"other than %\(jobid\)s and %\(node\)s"),
        ({"mount_points": ["100%"]}, "%% for a percent sign"),
        ({"mount_points": ["/x"], "sampler_interval": "a"}, "must be a number of seconds"),
    ],
)
def test_wrong_settings(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        FSStats(**settings)  # type: ignore[arg-type]


def test_zero_is_a_value() -> None:
    assert FSStats(mount_points=["/"], sampler_interval=0).interval == 0.0


def command(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_volumes(job: Job, tmp_path: Path) -> None:
    zfs = command(
        tmp_path / "zfs",
        'echo "$@" >> "$0.log"; cat "$0.out"; [ -s "$0.out" ] || { echo bad >&2; exit 1; }',
    )
    (tmp_path / "zfs.out").write_text("tank/42\t1000\t3000\ntank/other\t1\t1\n")
    sampler = ZFSStats(node=job.node, volumes=["tank/%(jobid)s"], zfs_command=zfs)
    sampler._background.timeout = 5
    entry = {"used": 1000, "free": 3000, "size": 4000, "used_average": 1000.0}
    assert sampler.document(job.view) == {"tank/42": entry}
    # A command is not run again at once.
    assert sampler.columns(job.view)["filesystem.tank/42.used"] == 1000
    assert (tmp_path / "zfs.log").read_text() == "list -Hp -o name,used,avail tank/42\n"
    job.clock.go(60)
    (tmp_path / "zfs.out").write_text("tank/42\t3000\t1000\n")
    second = sampler.document(job.view)
    assert second is not None
    assert second["tank/42"]["used_average"] == 2000.0
    job.clock.go(60)
    (tmp_path / "zfs.out").write_text("")
    assert sampler.document(job.view) is None
    assert "exited with status 1: bad" in sampler.errors.causes[zfs]
    assert sampler.final(job.view)["tank/42"]["used_max"] == 3000


def test_volumes_by_glob_and_without_the_command(job: Job, tmp_path: Path) -> None:
    zfs = command(tmp_path / "zfs", 'printf "tank/j42\\t1\\t1\\ntank/j42b\\t1\\t1\\nx\\t1\\t1\\n"')
    sampler = ZFSStats(node=job.node, volumes=["tank/j%(jobid)s*"], zfs_command=zfs)
    assert set(sampler.final(job.view)) == {"tank/j42", "tank/j42b"}
    absent = ZFSStats(node=job.node, volumes=["x"], zfs_command=str(tmp_path / "none"))
    assert absent.final(job.view) == {}
    assert absent.coverage(job.view)["zfs"].quality == "failed"
    with pytest.raises(ConfigError, match="begins with no dash"):
        ZFSStats(volumes=["-r"])
    with pytest.raises(ConfigError, match="volumes is missing"):
        ZFSStats()


def test_devices_as_iostat_would_print_them(job: Job, tmp_path: Path) -> None:
    write(job.root, {"proc/diskstats": DISK.format(3, 100, 800, 50, 10, 80, 5, 40, 55)})
    write(job.root, {"dev/dm-3": "", "sys/block/dm-3/dm/name": "vg-job42\n"})
    link = job.root / "dev" / "mapper" / "vg-job42"
    link.parent.mkdir()
    link.symlink_to("../dm-3")
    sampler = IOStats(
        node=job.node,
        iostat_devs=[f"{job.root}/dev/mapper/vg-job%(jobid)s*", "vg-job42", "nosuch"],
        iostat_command="/usr/bin/iostat",
    )
    assert sampler.document(job.view) is None
    job.clock.go(10)
    write(job.root, {"proc/diskstats": DISK.format(3, 200, 2848, 150, 60, 4176, 505, 5040, 20055)})
    found = sampler.document(job.view)
    assert found is not None
    assert set(found) == {str(link), "vg-job42"}
    assert found[str(link)] == {
        "rrqm_s": "0.00",
        "wrqm_s": "0.00",
        "r_s": "10.00",
        "w_s": "5.00",
        "rkB_s": "102.40",
        "wkB_s": "204.80",
        "avgrq-sz": "40.96",
        "avgqu-sz": "2.00",
        "await": "4.00",
        "r_await": "1.00",
        "w_await": "10.00",
        "svctm": "33.33",
        "util": "50.00",
    }
    row = sampler.columns(job.view)
    assert row["device.dm-3.read_bytes"] == 2048 * 512
    assert row["device.dm-3.busy"] == 5_000_000_000
    job.clock.go(10)
    assert sampler.final(job.view)["vg-job42"]["util"] == "25.00"


def test_times_of_devices_wrap_at_32_bits(job: Job) -> None:
    top = 2**32
    write(job.root, {"proc/diskstats": DISK.format(0, 5, 5, 5, 5, 5, 5, top - 500, top - 5)})
    sampler = IOStats(node=job.node, iostat_devs=["dm-*"])
    sampler.columns(job.view)
    job.clock.go(1)
    write(job.root, {"proc/diskstats": DISK.format(0, 5, 5, 5, 5, 5, 5, 500, 5)})
    assert sampler.columns(job.view)["device.dm-0.busy"] == 1_000_000_000
    job.clock.go(1)
    (job.root / "proc/diskstats").write_text("")
    assert sampler.columns(job.view) == {}
    assert sampler.final(job.view)["dm-0"]["util"] == "100.00"


def test_a_device_that_comes_later_is_found(job: Job) -> None:
    write(job.root, {"proc/diskstats": ""})
    sampler = IOStats(node=job.node, iostat_devs=["dm-*"])
    assert sampler.columns(job.view) == {}
    assert sampler.final(job.view) == {}
    write(job.root, {"proc/diskstats": DISK.format(7, 1, 1, 1, 1, 1, 1, 1, 1)})
    job.clock.go(11)
    assert sampler.columns(job.view)["device.dm-7.reads"] == 0
    with pytest.raises(ConfigError, match="iostat_devs is missing"):
        IOStats()
