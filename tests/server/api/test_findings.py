"""The routes of the findings."""

import pytest
from starlette.testclient import TestClient

from jobsight.config.settings import FindingsSettings, PriceSettings
from jobsight.findings.finding import Cost, Evidence, Verdict
from jobsight.findings.service import FindingsService
from jobsight.findings.vocabulary import FigureSet
from jobsight.findings.worker import Judge, update_all
from jobsight.server.app import create_app
from jobsight.store.store import Store
from tests.findings.judge import KIND, ToldJudge, fired
from tests.server.conftest import TOKEN
from tests.web.viewers import STAFF, seen_by

IDLE = "gpus-never-used"


def say(figures: FigureSet) -> list[Verdict]:
    verdicts = [
        fired(cost=Cost(memory_gb_hours=100.0), evidence=Evidence(series=("memory.used",))),
        Verdict(kind="memory-leak", outcome="withheld", reason="the run is shorter than 10 min"),
        Verdict(kind="cpu-idle", outcome="not fired", figures={"cpu.share": "97.3 %"}),
    ]
    if figures.values["run.tasks"] == 13:
        verdicts.append(fired(IDLE, severity="critical", cost=Cost(gpu_hours=40.0)))
    return verdicts


class Told(FindingsService):
    """A service with a judge that says what the test wants."""

    def judge(self) -> Judge:
        return ToldJudge(say)


@pytest.fixture
def service(filled: Store) -> FindingsService:
    update_all(filled, ToldJudge(say))
    prices = {"EUR": PriceSettings(gpu_hour=2.0, memory_gb_hour=0.01)}
    return Told(filled, FindingsSettings(prices=prices))


@pytest.fixture
def client(filled: Store, service: FindingsService) -> TestClient:
    made = TestClient(
        create_app(filled, TOKEN, delay=0, findings=service), base_url="http://127.0.0.1"
    )
    made.headers["Authorization"] = f"Bearer {TOKEN}"
    return made


def test_the_list_has_the_highest_cost_first(client: TestClient) -> None:
    found = client.get("/api/v1/findings").json()
    assert [(row["display_id"], row["finding"]["kind"]) for row in found["findings"]] == [
        ("13", IDLE),
        ("12", KIND),
        ("13", KIND),
    ]
    first = found["findings"][0]
    assert first["run"] == "alpha:13:20261115T043312Z"
    assert first["finding"]["severity"] == "critical"
    assert first["finding"]["cost"] == {
        "core_hours": None,
        "gpu_hours": pytest.approx(40.0),
        "memory_gb_hours": None,
        "energy_kwh": None,
    }
    assert first["finding"]["prices"] == [{"amount": pytest.approx(80.0), "unit": "EUR"}]
    assert first["finding"]["change"] == "#SBATCH --mem=5G"
    assert first["finding"]["help"] == f"/findings/{first['finding']['kind']}"


def test_a_downloaded_report_links_to_the_pages_of_its_findings(client: TestClient) -> None:
    page = client.get("/api/v1/jobs/13/report.html").text
    assert f'<a href="http://127.0.0.1/findings/{KIND}"' in page


@pytest.mark.parametrize(
    ("query", "jobs"),
    [
        ("user=bob", ["13", "13"]),
        ("kind=gpus-never-used", ["13"]),
        ("severity=critical", ["13"]),
        ("audience=staff", []),
        ("since=2027-01-01T00:00:00Z", []),
        ("until=2026-11-15T00:00:00Z", []),
        ("cluster=alpha&account=physics", ["13", "12", "13"]),
    ],
)
def test_filters(client: TestClient, query: str, jobs: list[str]) -> None:
    found = client.get(f"/api/v1/findings?{query}").json()
    assert [row["display_id"] for row in found["findings"]] == jobs


def test_a_cursor_continues(client: TestClient) -> None:
    kinds, address = [], "/api/v1/findings?limit=1"
    while True:
        found = client.get(address).json()
        kinds += [row["finding"]["kind"] for row in found["findings"]]
        if found["next"] is None:
            break
        address = f"/api/v1/findings?limit=1&cursor={found['next']}"
    assert kinds == [IDLE, KIND, KIND]


@pytest.mark.parametrize("cursor", ["1", "x-1-a", "1-1-A", "1-1-" + "a" * 200])
def test_a_wrong_cursor_is_refused(client: TestClient, cursor: str) -> None:
    assert client.get(f"/api/v1/findings?cursor={cursor}").status_code == 422


def test_sums(client: TestClient) -> None:
    found = client.get("/api/v1/findings/summary?by=kind").json()
    assert [(row["kind"], row["runs"]) for row in found["rows"]] == [(KIND, 2), (IDLE, 1)]
    assert found["rows"][0]["cost"]["memory_gb_hours"] == pytest.approx(200.0)
    found = client.get("/api/v1/findings/summary?by=day,user&user=bob").json()
    assert [(row["day"], row["user"], row["runs"]) for row in found["rows"]] == [
        ("2026-11-15", "bob", 2)
    ]
    assert client.get("/api/v1/findings/summary?by=nodes").status_code == 422


def test_the_report_and_the_list_of_jobs_have_them(client: TestClient) -> None:
    report = client.get("/api/v1/jobs/13").json()
    assert [each["kind"] for each in report["findings"]] == [IDLE, KIND]
    assert report["findings"][1]["evidence"]["series"] == ["memory.used"]
    rows = client.get("/api/v1/jobs").json()["jobs"]
    assert {row["display_id"]: (row["findings"], row["severity"]) for row in rows} == {
        "12": (1, "warning"),
        "13": (2, "critical"),
    }
    rows = client.get(f"/api/v1/jobs?finding={IDLE}").json()["jobs"]
    assert [row["display_id"] for row in rows] == ["13"]
    assert client.get("/api/v1/jobs?finding=any").json()["total"] == 2
    assert client.get("/api/v1/jobs?finding=no-such").json()["total"] == 0


def test_an_explanation_has_every_rule(client: TestClient) -> None:
    found = client.get("/api/v1/jobs/12/explain").json()
    assert [(row["kind"], row["outcome"]) for row in found["verdicts"]] == [
        (KIND, "fired"),
        ("memory-leak", "withheld"),
        ("cpu-idle", "not fired"),
    ]
    assert found["verdicts"][1]["reason"] == "the run is shorter than 10 min"
    assert found["verdicts"][2]["figures"] == {"cpu.share": "97.3 %"}
    assert client.get("/api/v1/jobs/99/explain").status_code == 404


def test_replies_are_recorded_and_taken_back(client: TestClient) -> None:
    address = f"/api/v1/jobs/13/findings/{IDLE}"
    reply = client.post(f"{address}/not-helpful", json={"user": "bob"}).json()
    assert (reply["finding"]["state"], reply["finding"]["reply_user"]) == ("not helpful", "bob")
    assert IDLE not in client.get("/api/v1/findings").text
    assert IDLE in client.get("/api/v1/findings?all=true").text
    found = client.get(f"/api/v1/findings/summary?kind={IDLE}").json()
    assert found["rows"][0]["not_helpful"] == 1
    # In the report it comes last.
    report = client.get("/api/v1/jobs/13").json()
    assert [each["kind"] for each in report["findings"]] == [KIND, IDLE]
    client.post(f"{address}/reopen", json={"user": "bob"})
    assert IDLE in client.get("/api/v1/findings").text
    reply = client.post(f"{address}/acknowledge", json={"user": "root"}).json()
    assert reply["finding"]["state"] == "acknowledged"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("12/findings/no-such/acknowledge", {"user": "bob"}, 404),
        ("99/findings/no-such/acknowledge", {"user": "bob"}, 404),
        (f"12/findings/{KIND}/acknowledge", {}, 422),
        (f"12/findings/{KIND}/acknowledge", {"user": "a\x1bb"}, 422),
    ],
)
def test_wrong_replies(client: TestClient, path: str, body: dict[str, str], status: int) -> None:
    answer = client.post(f"/api/v1/jobs/{path}", json=body)
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_a_cookie_does_not_permit_a_reply(client: TestClient) -> None:
    del client.headers["Authorization"]
    answer = client.post(f"/api/v1/jobs/12/findings/{KIND}/acknowledge", json={"user": "x"})
    assert answer.status_code == 401


def test_a_report_changes_its_tag_with_its_findings(client: TestClient) -> None:
    tag = client.get("/api/v1/jobs/12").headers["ETag"]
    again = client.get("/api/v1/jobs/12", headers={"If-None-Match": tag})
    assert again.status_code == 304
    client.post(f"/api/v1/jobs/12/findings/{KIND}/acknowledge", json={"user": "bob"})
    assert client.get("/api/v1/jobs/12", headers={"If-None-Match": tag}).status_code == 200


def test_what_a_named_viewer_is_shown_has_an_effect(
    client: TestClient, service: FindingsService, filled: Store
) -> None:
    client.get("/api/v1/jobs/12")
    client.get("/api/v1/jobs/12?viewer=anna")
    client.get("/jobs/12")
    with seen_by(STAFF):
        client.get("/jobs/12")
    service.shown.write(filled, 5)
    with filled.database.query() as transaction:
        rows = transaction.execute(
            "SELECT viewer, place, count FROM findings_shown ORDER BY place, viewer"
        ).fetchall()
    assert [tuple(row) for row in rows] == [
        ("anna", "api", 1), ("carol", "page", 1), ("signed in", "page", 1),
    ]  # fmt: skip
    assert client.get("/api/v1/findings/effect").json() == {"kinds": [], "works": []}
