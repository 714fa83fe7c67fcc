"""Core, Software and SlurmInfo: the three documents that accounting stands on."""

import json
from typing import Any

import pytest

from jobsight.agent.samplers.base import JobIdentity
from jobsight.agent.samplers.processes import Software
from jobsight.agent.samplers.slurm_info import SlurmInfo
from jobsight.errors import ConfigError
from jobsight.model import SECOND, ExecutableUse
from tests.agent.samplers.jobs import START, Job


def use(path: bytes, user: float, system: float, **more: Any) -> ExecutableUse:
    return ExecutableUse(
        path=path,
        cpu_time=round((user + system) * SECOND),
        cpu_user=round(user * SECOND),
        cpu_system=round(system * SECOND),
        first_seen=more.pop("first_seen", START),
        last_seen=more.pop("last_seen", START + 60 * SECOND),
        **more,
    )


def test_core_speaks_once_and_at_the_end(job: Job) -> None:
    core = JobIdentity(node=job.node)
    assert core.document(job.view) == {"jobid": 42, "node": "n1"}
    assert core.document(job.view) is None
    assert core.final(job.view) == {"jobid": 42, "node": "n1"}
    assert core.columns(job.view) == {}


def test_software_over_time(job: Job) -> None:
    software = Software(node=job.node)
    job.books.user, job.books.system = 10 * SECOND, 2 * SECOND
    first = software.document(job.view)
    assert first == {"current": {"total_user": 10.0, "total_system": 2.0, "elapsed_time": 0.0}}
    job.clock.go(10)
    job.books.user, job.books.system = 30 * SECOND, 3 * SECOND
    software.document(job.view)
    job.clock.go(30)
    job.books.user = 60 * SECOND
    third = software.document(job.view)
    assert third is not None
    assert third["current"] == pytest.approx(
        {
            "total_user": 60.0,
            "total_system": 3.0,
            "elapsed_time": 40.0,
            "user": 1.0,
            "system": 0.0,
            # 20 s in the first 10 s, 30 s in the next 30 s.
            "user_average": 50 / 40,
            "system_average": 1 / 40,
        }
    )


def test_the_end_of_software_is_the_books_and_not_the_remainder(job: Job) -> None:
    software = Software(node=job.node)
    job.books.rows = [
        use(b"/sw/GROMACS/bin/gmx", 100.5, 2.5, first_seen=START + SECOND),
        use(b"/home/u/\xff\n%s", 1, 0),
        use(b"sh", 0.25, 0.25, path_known=False),
    ]
    job.books.user, job.books.system = 200 * SECOND, 3 * SECOND
    found = software.final(job.view)
    assert found["execs"] == {
        "/sw/GROMACS/bin/gmx": {"user": 100.5, "system": 2.5},
        "/home/u/\\xff\\x0a%s": {"user": 1.0, "system": 0.0},
        "sh": {"user": 0.25, "system": 0.25},
    }
    assert found["start_time"] == START // SECOND
    assert found["end_time"] == START // SECOND + 60
    assert type(found["end_time"]) is int
    assert found["current"] == {"total_user": 200.0, "total_system": 3.0}
    assert json.loads(json.dumps(found)) == found


def test_a_process_that_still_runs_makes_the_end_now(job: Job) -> None:
    job.books.rows = [use(b"/a", 1, 0)]
    job.process(5)
    found = Software(node=job.node).final(job.view)
    assert found["end_time"] == (START + job.clock.now) // SECOND


def test_a_job_without_a_process_has_a_record_too(job: Job) -> None:
    found = Software(node=job.node).final(job.view)
    assert found["execs"] == {}
    assert found["start_time"] == found["end_time"] == START // SECOND


def test_names_of_software_from_a_mapper(job: Job) -> None:
    def mapper(path: str) -> str | None:
        if path == "/bad":
            raise ValueError("a rule is broken")
        return "gromacs" if "gmx" in path else None

    software = Software(node=job.node, software_mapper=mapper)
    job.books.rows = [
        use(b"/1/gmx", 1, 2),
        use(b"/2/gmx", 3, 4),
        use(b"/x", 5, 6),
        use(b"/bad", 1, 1),
    ]
    found = software.document(job.view)
    assert found is not None
    assert found["current"]["software"] == {"gromacs": {"user": 4.0, "system": 6.0}}
    # Without a counter the records are the total.
    assert found["current"]["total_user"] == 10.0
    assert list(software.errors.causes) == ["software_mapper"]


def test_a_mapper_by_name_does_not_stop_a_site(job: Job) -> None:
    software = Software(node=job.node, software_mapper="sams.software.Regexp")
    assert "software_mapper" in software.errors.causes
    assert software.document(job.view) is not None


def known(job: Job) -> None:
    info = job.view.info
    info.account, info.user, info.uid = "p1", "u1", 1001
    info.nodes, info.cpus, info.partition = ("n1", "n2"), 4, "batch"
    info.name = "x Account=victim UserId=root(0)\nNumCPUs=1"
    info.start = 1_704_103_200 * SECOND


# Fault 17: labels of live outputs need what is known, however incomplete.
def test_slurm_info_is_texts_and_comes_with_every_change(job: Job) -> None:
    info = SlurmInfo(node=job.node, environment={"TZ": "UTC"}, scontrol="/usr/bin/scontrol")
    assert info.document(job.view) is None
    job.view.info.uid = 1001
    assert info.document(job.view) == {"uid": "1001"}
    assert info.document(job.view) is None
    assert info.final(job.view) == {"uid": "1001"}
    known(job)
    found = info.document(job.view)
    assert found == {
        "account": "p1",
        "username": "u1",
        "uid": "1001",
        "nodes": "2",
        "cpus": "4",
        "partition": "batch",
        "jobname": "x Account=victim UserId=root(0)\\x0aNumCPUs=1",
        "starttime": "2024-01-01T10:00:00",
        "starttimestamp": 1704103200.0,
    }
    assert info.document(job.view) is None
    job.view.info.cpus = 8
    again = info.document(job.view)
    assert again is not None
    assert again["cpus"] == "8"
    assert info.final(job.view) == again


def test_the_start_is_written_in_the_zone_of_the_settings(job: Job) -> None:
    known(job)
    info = SlurmInfo(node=job.node, environment={"TZ": ":Europe/Stockholm"})
    assert info.final(job.view)["starttime"] == "2024-01-01T11:00:00"
    with pytest.raises(ConfigError, match="Europe/Nowhere"):
        SlurmInfo(environment={"TZ": "Europe/Nowhere"})
    with pytest.raises(ConfigError, match="must be a map"):
        SlurmInfo(environment="TZ=UTC")  # type: ignore[arg-type]
