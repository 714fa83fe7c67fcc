"""Jobs that wait and jobs without an agent: what Slurm recorded of them is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobsight.cli.main import main
from jobsight.model import SECOND, JobInfo, RunReference
from jobsight.reports.build import job_row
from jobsight.reports.pending import find_report, list_jobs, list_page
from jobsight.reports.terminal import report_text
from jobsight.scheduler.records import JobRecord, StepInfo
from jobsight.server.app import create_app
from jobsight.store.read.queries import RunNotFound
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store
from tests.server.batches import batch

START = 1_794_717_192 * SECOND
TOKEN = "a-token-for-the-tests-of-pending-jobs"


def _job(job_id: int, **changes: Any) -> JobInfo:
    fields: dict[str, Any] = {
        "cluster": "alpha",
        "job_id": job_id,
        "source": "json",
        "name": "solver",
        "user": "alice",
        "account": "physics",
        "cpus": 64,
        "memory": 2**36,
        "time_limit": 3600 * SECOND,
        "submit": START - 600 * SECOND,
        "state": "PENDING",
    }
    return JobInfo(**(fields | changes))


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    with Store.open(location) as made:
        ran = JobRecord(
            info=_job(62, start=START, end=START + 60 * SECOND, state="FAILED", exit_code=3),
            reason="NonZeroExitCode",
            submit_line="sbatch --wrap 'solve it'",
            working_directory="/home/alice/solver",
            cpu_time=3000 * SECOND,
            cpu_user=2900 * SECOND,
            cpu_system=100 * SECOND,
            steps=[
                StepInfo(step="0", name="solve", tasks=64, cpu_time=2990 * SECOND,
                         memory_peak=3 * 2**30, state="FAILED", start=START,
                         end=START + 50 * SECOND),
                StepInfo(step="batch", name="batch", tasks=1, cpu_time=10 * SECOND,
                         memory_peak=2**20),
            ],
        )  # fmt: skip
        made.record_jobs([ran.info], [ran.details])
        waiting = [
            JobRecord(info=_job(70), reason="Resources", expected_start=START + 7200 * SECOND,
                      submit_line="sbatch job.sh", working_directory="/home/alice"),
            JobRecord(info=_job(71, array_job_id=71, user="bob", submit=START), reason="Dependency",
                      array_tasks="3-9:2,12%2", dependency="afterok:62"),
        ]  # fmt: skip
        Snapshot(made.database, "alpha").replace(
            "pending", [(str(record.info.job_id), record) for record in waiting]
        )
        yield made


@pytest.fixture
def client(store: Store) -> TestClient:
    made = TestClient(create_app(store, TOKEN, delay=0), base_url="http://127.0.0.1:8080")
    made.headers["Authorization"] = f"Bearer {TOKEN}"
    return made


# Fault 21: the filter PENDING was always empty.
def test_pending_jobs_are_listed(store: Store, client: TestClient, location: str) -> None:
    rows = list_jobs(store, now=START, limit=50, state="PENDING")
    assert [row.display_id for row in rows] == ["71_[3-9:2,12%2]", "70"]
    assert [row.state_text for row in rows] == ["pending: Dependency", "pending: Resources"]
    first = list_page(store, now=START, limit=1, state="PENDING")
    assert (first.total, first.total_exact, str(first.next)) == (2, True, "p1")
    second = list_page(store, now=START, limit=1, cursor=first.next, state="PENDING")
    assert second == list_page(store, now=START, limit=1, offset=1, state="PENDING")
    assert second.next is None
    (row,) = second.rows
    assert row.job_id == 70
    (row,) = list_jobs(store, now=START, limit=9, state="PENDING", user="bob")
    assert row.job_id == 71
    assert list_jobs(store, now=START, limit=9, state="PENDING", search="nobody") == []
    assert [row.job_id for row in list_jobs(store, now=START, limit=9)] == [62]
    reply = client.get("/api/v1/jobs?state=PENDING").json()
    assert (reply["total"], [job["job_id"] for job in reply["jobs"]]) == (2, [71, 70])
    page = client.get("/jobs?state=PENDING").text
    assert 'href="/jobs/alpha:70"' in page
    assert 'href="/jobs/alpha:71"' in page


# Fault 21: the report of a waiting job called it unknown.
def test_the_report_of_a_pending_job_gives_the_reason(
    store: Store, client: TestClient, location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = find_report(store, RunReference.parse("70"))
    assert report.pending
    assert report.state_text == "pending: Resources"
    assert report.command == "sbatch job.sh"
    for text in (report_text(report), client.get("/jobs/70").text):
        assert "Slurm&#39;s reason: Resources" in text or "Slurm's reason: Resources" in text
        assert "expects it to start" in text
    assert main(["report", "alpha:71_12", "--store", location]) == 0
    shown = capsys.readouterr().out
    assert "pending: Dependency" in shown
    assert "afterok:62" in shown
    for task in (3, 9, 12):
        assert find_report(store, RunReference(71, array_task_id=task)).job_id == 71
    for absent in (4, 11):
        with pytest.raises(RunNotFound):
            find_report(store, RunReference(71, array_task_id=absent))
    assert client.get("/api/v1/jobs/beta:70").status_code == 404
    assert client.get("/api/v1/jobs/70").json()["scheduler"]["reason"] == "Resources"


# Fault 21: what Slurm recorded of a job without an agent was stored and shown nowhere.
def test_a_job_without_an_agent_shows_what_slurm_recorded(store: Store, client: TestClient) -> None:
    report = find_report(store, RunReference(62))
    text, page = report_text(report), client.get("/jobs/62").text
    wanted = ("NonZeroExitCode", "/home/alice/solver", "00:50:00", "3.00 GiB", "solve", "50.0 s")
    for word in wanted:
        assert word in text, word
        assert word in page, word
    assert "Command  sbatch --wrap 'solve it'" in text
    assert report.scheduler is not None
    assert [step.step for step in report.scheduler.steps] == ["batch", "0"]
    reply = client.get("/api/v1/jobs/62").json()["scheduler"]
    assert reply["cpu_seconds"] == 3000
    assert reply["memory_peak_bytes"] == 3 * 2**30


# Fault 21: the id as Slurm and jobsight show it.
def test_search_by_the_id_that_is_shown(store: Store) -> None:
    store.record_jobs(
        [
            _job(65, array_job_id=64, array_task_id=3, start=START, state="RUNNING"),
            _job(66, array_job_id=64, array_task_id=30, start=START, state="RUNNING"),
            _job(89, het_job_id=88, het_offset=1, start=START, state="RUNNING"),
        ]
    )
    found = {
        text: [run.info.job_id for run in store.runs(search=text)] for text in ("64_3", "88+1")
    }
    assert found == {"64_3": [65], "88+1": [89]}


# Fault 21: runs without a record of the scheduler are found by the state that is shown.
def test_the_state_that_is_shown_is_the_one_that_is_found(store: Store) -> None:
    for job_id, final in ((80, False), (81, True)):
        sighted = batch(job_id)
        sighted.jobs.clear()
        for part in sighted.parts:
            part.final = final
        store.write(sighted)
    shown: dict[str, list[int]] = {}
    for run in store.runs(limit=100):
        shown.setdefault(job_row(run, START).state, []).append(run.info.job_id)
    assert shown["RUNNING"] == [80]
    assert shown["UNKNOWN"] == [81]
    for state, jobs in shown.items():
        assert [run.info.job_id for run in store.runs(state=state)] == jobs
        assert store.count_runs(state=state) == len(jobs)


# Fault 21: an unknown state gave an empty list and exit code 0.
def test_an_unknown_state_is_refused_with_the_names(
    store: Store, client: TestClient, location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jobs", "-t", "FOO", "--store", location]) == 2
    assert "OUT_OF_MEMORY" in capsys.readouterr().err
    assert main(["jobs", "-t", "failed", "--format", "json", "--store", location]) == 0
    assert [row["job_id"] for row in json.loads(capsys.readouterr().out)] == [62]
    reply = client.get("/api/v1/jobs?state=FAILD")
    assert reply.status_code == 422
    assert "did you mean FAILED?" in reply.json()["detail"]
