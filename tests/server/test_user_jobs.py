"""The jobs of a user from Slurm's database: kept for a minute, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from jobsight.config.settings import ServerSettings, SlurmDatabaseSettings
from jobsight.errors import JobsightError
from jobsight.server import user_jobs
from jobsight.server.app import create_app
from jobsight.server.user_jobs import UserJobs
from jobsight.store.slurm_database import DatabaseJob
from jobsight.store.store import Store
from tests.web import sample

SETTINGS = SlurmDatabaseSettings(address="127.0.0.1:1", cluster="c")


class Database:
    """Counts queries, and answers or fails."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.fails = False

    def jobs_of_user(self, *arguments: object, **options: object) -> list[DatabaseJob]:
        self.asked.append(int(str(arguments[3])))
        if self.fails:
            raise JobsightError("the database at x does not answer")
        return [DatabaseJob(999, "\x1b"), DatabaseJob(7, "x")]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    made = Database()
    monkeypatch.setattr(user_jobs, "jobs_of_user", made.jobs_of_user)
    monkeypatch.setattr(user_jobs, "read_password", lambda file: "password")
    return made


def test_an_answer_is_kept_and_a_failure_is_not_repeated(database: Database) -> None:
    now = [0.0]
    jobs = UserJobs(SETTINGS, lambda: now[0])
    assert jobs.of(5) == [999, 7]
    assert jobs.of(5) == [999, 7]
    assert database.asked == [5]
    now[0] += 61
    database.fails = True
    # The last answer is better than none.
    assert jobs.of(5) == [999, 7]
    assert jobs.of(6) == []
    assert database.asked == [5, 5]
    now[0] += 31
    database.fails = False
    assert jobs.of(6) == [999, 7]
    assert database.asked == [5, 5, 6]


def test_petricore_s_route_has_them(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobsight.server.petricore._uid", lambda user: 1000)
    settings = ServerSettings(petricore_routes=True, petricore_database=SETTINGS)
    with Store.open(tmp_path / "store.db") as store:
        sample.fill(store)
        own = [run.info.job_id for run in store.runs(limit=100, user="ada")]
        client = TestClient(
            create_app(store, "t" * 32, settings=settings, delay=0),
            base_url="http://127.0.0.1:8080",
            headers={"Authorization": f"Bearer {'t' * 32}"},
        )
        reply = client.get("/api/v1/users/ada").json()
        assert set(reply["jobs"]) == {*own, 999, 7}
        assert len(reply["jobs"]) == len(set(reply["jobs"]))
        database.fails = True
        assert set(client.get("/api/v1/users/grace").json()["jobs"]) >= {
            run.info.job_id for run in store.runs(limit=100, user="grace")
        }


def test_a_wrong_address_is_an_error_at_the_start() -> None:
    with pytest.raises(JobsightError, match="expected the path of a socket"):
        UserJobs(SlurmDatabaseSettings(address="not an address", cluster="c"))
