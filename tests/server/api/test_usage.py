"""The API's sums of use."""

from starlette.testclient import TestClient

from jobsight.software.rules import RuleSet
from jobsight.software.worker import update
from jobsight.store.store import Store
from tests.server.batches import START

_SECOND = START // 10**9


def test_use_by_user_and_day(client: TestClient, filled: Store) -> None:
    before = client.get("/api/v1/usage").json()
    assert (before["rows"], before["pending_runs"], before["set_aside_runs"]) == ([], 2, 0)
    assert client.get("/api/v1/usage?cluster=other").json()["pending_runs"] == 0
    update(filled, RuleSet([]))
    reply = client.get(f"/api/v1/usage?by=user,user&every=day&since={_SECOND}").json()
    assert (reply["since"], reply["until"], reply["pending_runs"]) == ("2026-11-15", None, 0)
    assert [(row["period"], row["jobs"]) for row in reply["rows"]] == [("2026-11-15", 1)] * 2
    assert {row["user"] for row in reply["rows"]} == {"alice", "bob"}
    for row in reply["rows"]:
        assert row["cpu_hours"] == 10 / 3600
        assert row["core_hours"] == 20 / 3600
    assert client.get(f"/api/v1/usage?until={_SECOND}&user=bob").json()["rows"]
    assert not client.get("/api/v1/usage?until=0").json()["rows"]


def test_use_by_software(client: TestClient, filled: Store) -> None:
    update(filled, RuleSet([]))
    rows = client.get("/api/v1/usage?by=software,version").json()["rows"]
    assert [row["kind"] for row in rows] == ["undetermined", "not attributed"]
    assert sum(row["core_hours"] for row in rows) == 40 / 3600
    reply = client.get("/api/v1/software").json()
    assert reply["total"] == 0
    assert client.get("/api/v1/software?limit=0").status_code == 422
    listed = reply["software"]
    assert {row["kind"]: row["core_hours"] for row in listed} == {
        row["kind"]: row["core_hours"] for row in rows
    }


def test_a_wrong_question_is_answered_with_a_sentence(client: TestClient) -> None:
    answer = client.get("/api/v1/usage?by=usr")
    assert answer.status_code == 422
    assert "by: " in answer.json()["detail"]
    assert client.get("/api/v1/usage?every=year").status_code == 422
    assert client.get("/api/v1/usage", headers={"Authorization": ""}).status_code == 401
