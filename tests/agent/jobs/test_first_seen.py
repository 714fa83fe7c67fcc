"""When a job was first seen, remembered over a restart and not over a reboot."""

from pathlib import Path

import pytest

from jobsight.agent.jobs.cgroup_watcher import JobCgroup
from jobsight.agent.jobs.first_seen import FirstSeen, same_directories


def cgroup(directory: Path, key: str = "slurm/uid_0/job_1", **inodes: int) -> JobCgroup:
    return JobCgroup(key, directory, inodes or {"cpuacct": 7}, 1, None, None, 0, {})


def test_a_birth_survives_a_restart_of_the_agent(tmp_path: Path) -> None:
    first_seen = FirstSeen(tmp_path / "run", boot_id="a")
    birth = first_seen.creation_time(cgroup(tmp_path), [])
    again = FirstSeen(tmp_path / "run", boot_id="a")
    assert again.is_known(cgroup(tmp_path))
    assert again.creation_time(cgroup(tmp_path), []) == birth
    # A hierarchy may join; none changes.
    assert again.is_known(cgroup(tmp_path, cpuacct=7, memory=9))
    assert not again.is_known(cgroup(tmp_path, cpuacct=8))
    assert not again.is_known(cgroup(tmp_path, memory=7))


def test_another_boot_has_other_jobs(tmp_path: Path) -> None:
    FirstSeen(tmp_path, boot_id="a").creation_time(cgroup(tmp_path), [])
    assert not FirstSeen(tmp_path, boot_id="b").is_known(cgroup(tmp_path))


def test_what_ended_is_forgotten_for_good(tmp_path: Path) -> None:
    first_seen = FirstSeen(tmp_path, boot_id="a")
    for key in ("one", "two", "three"):
        first_seen.creation_time(cgroup(tmp_path, key), [])
    first_seen.forget(cgroup(tmp_path, "one"))
    first_seen.keep_only({"two"})
    again = FirstSeen(tmp_path, boot_id="a")
    assert [again.is_known(cgroup(tmp_path, key)) for key in ("one", "two", "three")] == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"one": 1}', b"\xff", b'{"boot_id": 1}'])
def test_a_file_that_makes_no_sense_is_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sightings.json").write_bytes(content)
    first_seen = FirstSeen(tmp_path, boot_id="a")
    assert not first_seen.is_known(cgroup(tmp_path))
    first_seen.creation_time(cgroup(tmp_path), [])
    assert FirstSeen(tmp_path, boot_id="a").is_known(cgroup(tmp_path))


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    first_seen = FirstSeen(tmp_path / "file" / "run", boot_id="a")
    assert first_seen.creation_time(cgroup(tmp_path), []) > 0
    assert first_seen.is_known(cgroup(tmp_path))


def test_looks_that_share_no_hierarchy_are_of_two_jobs() -> None:
    assert same_directories({"cpuacct": 1, "memory": 2}, {"memory": 2, "freezer": 3})
    assert not same_directories({"cpuacct": 1}, {"memory": 1})
    assert not same_directories({"cpuacct": 1, "memory": 2}, {"cpuacct": 1, "memory": 3})
