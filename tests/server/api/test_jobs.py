from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobsight.errors import StoreError
from jobsight.metrics import METRICS, NODE_METRICS
from jobsight.model import SECOND, Batch
from jobsight.reports.report import JobReport
from jobsight.server.app import create_app
from jobsight.store.store import Store
from jobsight.store.write.validation import BatchError
from jobsight.transport import wire
from jobsight.util.outer import from_outer
from tests.server.batches import START, batch
from tests.server.conftest import TOKEN


def test_the_list(client: TestClient) -> None:
    found = client.get("/api/v1/jobs").json()
    assert found["total"] == 2
    assert {row["display_id"] for row in found["jobs"]} == {"12", "13"}
    row = next(row for row in found["jobs"] if row["job_id"] == 12)
    assert row["run"] == "alpha:12:20261115T043312Z"
    assert row["cpu_seconds"] == 10
    assert row["cpu_share"] == pytest.approx(0.5)
    assert row["memory_share"] == pytest.approx(10 / 1024)
    assert row["elapsed_seconds"] == 10
    assert row["start"] == "2026-11-15T04:33:12.000000000Z"


@pytest.mark.parametrize(
    ("query", "total"),
    [
        ("user=bob", 1),
        ("user=carol", 0),
        ("account=physics", 2),
        ("state=FAILED", 1),
        ("search=other", 1),
        (f"since={START // SECOND + 1000}", 0),
        ("since=2026-11-15T04:33:12Z", 2),
        ("since=2026-11-15T05:33:12%2B01:00", 2),
        ("since=2026-11-15T04:50:00.5Z", 0),
        ("since=0001-01-01T00:00:00Z", 2),
        ("since=9999-12-31T23:59:59Z", 0),
        ("limit=1", 2),
        ("cluster=alpha", 2),
        ("cluster=beta", 0),
        ("name=multiply", 1),
        ("node=n1", 2),
        ("node=n2", 0),
        ("software=none", 0),
        ("partition=long", 0),
        ("gpus=true", 0),
        ("cpu_share_below=0.6", 2),
        ("cpu_share_above=0.6", 0),
    ],
)
def test_questions_to_the_list(client: TestClient, query: str, total: int) -> None:
    found = client.get(f"/api/v1/jobs?{query}").json()
    assert found["total"] == total
    assert len(found["jobs"]) == min(total, found["limit"])


def test_the_list_is_sorted(client: TestClient) -> None:
    for sort, users in (("user", ["alice", "bob"]), ("-user", ["bob", "alice"])):
        first = client.get(f"/api/v1/jobs?sort={sort}&limit=1&fields=user").json()
        again = f"/api/v1/jobs?sort={sort}&limit=1&fields=user&cursor={first['next']}"
        rows = [*first["jobs"], *client.get(again).json()["jobs"]]
        assert [row["user"] for row in rows] == users
    other = client.get(f"/api/v1/jobs?sort=cpu_time&cursor={first['next']}")
    assert (other.status_code, "another order" in other.json()["detail"]) == (422, True)
    assert client.get("/api/v1/jobs?sort=colour").status_code == 422


def test_fields_are_selected(client: TestClient) -> None:
    rows = client.get("/api/v1/jobs?fields=user,cpu_seconds,user").json()["jobs"]
    assert [list(row) for row in rows] == [["run", "user", "cpu_seconds"]] * 2
    assert {row["user"] for row in rows} == {"alice", "bob"}


def test_the_next_page_is_in_the_body_and_in_the_header(client: TestClient) -> None:
    first = client.get("/api/v1/jobs?limit=1&account=physics&fields=user")
    link = first.headers["Link"]
    assert link.startswith("</api/v1/jobs?limit=1&account=physics&fields=user&cursor=")
    assert first.json()["next"] in link
    address, _, relation = link.partition("; ")
    assert relation == 'rel="next"'
    second = client.get(address.strip("<>"))
    assert "Link" not in second.headers
    users = [row["user"] for reply in (first, second) for row in reply.json()["jobs"]]
    assert sorted(users) == ["alice", "bob"]


@pytest.mark.parametrize("run", ["12", "alpha:12", "alpha:12:20261115T043312Z"])
def test_the_report(client: TestClient, run: str) -> None:
    answer = client.get(f"/api/v1/jobs/{run}")
    report = from_outer(answer.json(), JobReport)
    assert report.display_id == "12"
    assert report.cpu.share == pytest.approx(0.5)
    assert [row.path for row in report.executables] == [r"/usr/bin/\xff<b>", "not attributed"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/v1/jobs/99", 404, "99"),
        ("/api/v1/jobs/99/series", 404, "99"),
        ("/api/v1/jobs/abc", 400, "'abc' does not name a run"),
        ("/api/v1/jobs/a:1:20269999T999999Z", 400, "does not name a run"),
        ("/api/v1/jobs?limit=0", 422, "limit: "),
        ("/api/v1/jobs?since=x", 422, "since: 'x' is not an RFC 3339 time"),
        ("/api/v1/jobs?since=-1", 422, "since: "),
        ("/api/v1/jobs?since=nan", 422, "since: "),
        ("/api/v1/jobs?since=2026-13-41T00:00:00Z", 422, "since: "),
        ("/api/v1/jobs?usr=bob", 422, "did you mean user?"),
        ("/api/v1/jobs?fields=run,cpu_second", 422, "did you mean cpu_seconds?"),
        ("/api/v1/jobs?user=a&user=b", 422, "user is repeated"),
        ("/api/v1/nothing", 404, "not found"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(
    client: TestClient, path: str, status: int, words: str
) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["type"], problem["status"]) == ("about:blank", status)
    assert problem["title"] == HTTPStatus(status).phrase
    assert words in problem["detail"]


def test_curves(client: TestClient) -> None:
    made = client.get("/api/v1/jobs/12/series?metrics=cpu.time,memory.used,io.read_bytes").json()
    (node,) = made["nodes"]
    assert node["node"] == "n1"
    assert node["times_seconds"][0] == START / SECOND
    assert node["metrics"]["cpu.time"]["unit"] == "cores"
    assert node["metrics"]["cpu.time"]["mean"] == [None] + [1] * 10
    assert node["metrics"]["memory.used"]["maximum"][-1] == 10 * 2**20
    assert made["absent"] == ["io.read_bytes"]
    begin = START // SECOND
    few = client.get(f"/api/v1/jobs/12/series?points=2&since={begin + 2}&until={begin + 8}").json()
    assert len(few["nodes"][0]["times_seconds"]) == 2


def test_curves_as_rows(client: TestClient) -> None:
    made = client.get("/api/v1/jobs/12/samples?metrics=cpu.time,io.read_bytes").json()
    assert made["absent"] == ["io.read_bytes"]
    assert [row["mean"] for row in made["rows"]] == [None] + [1] * 10
    assert made["rows"][1] == {
        "time": "2026-11-15T04:33:13.000000000Z",
        "node": "n1",
        "metric": "cpu.time",
        "unit": "cores",
        **dict.fromkeys(("mean", "minimum", "maximum"), 1.0),
    }


def test_the_table_of_metrics(client: TestClient) -> None:
    rows = client.get("/api/v1/metrics").json()["metrics"]
    assert [row["name"] for row in rows] == [*METRICS, *NODE_METRICS]


def test_a_batch_is_stored_once(client: TestClient) -> None:
    data = wire.encode(batch(14))
    first, second = (client.post("/api/v1/batches", content=data) for _ in range(2))
    assert (first.status_code, first.json()) == (200, {"status": "stored"})
    assert (second.status_code, second.json()) == (200, {"status": "duplicate"})
    assert client.get("/api/v1/jobs/14").json()["cpu"]["cpu_seconds"] == 10


def test_batches_that_are_none(client: TestClient) -> None:
    answer = client.post("/api/v1/batches", content=b"nonsense")
    assert answer.status_code == 400
    assert "not a jobsight batch" in answer.json()["detail"]
    cut = client.post("/api/v1/batches", content=wire.encode(batch(15))[:-5])
    assert cut.status_code == 400


def test_a_batch_too_large_is_not_read_to_its_end(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What has come whole is not waited for any longer, else this would not end.
    monkeypatch.setattr("jobsight.server.auth.replies._DRAIN_TIMEOUT", 3600.0)
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 10_000
            yield b"x" * 10_000

    for content in (b"x" * 200_000, endless()):
        answer = client.post("/api/v1/batches", content=content)
        assert answer.status_code == 413
        assert "100000 bytes" in answer.json()["detail"]


class _Failing:
    """A store that cannot take a batch."""

    writes_in_parallel = False

    #: The token of the server is known without it.
    database = None

    def __init__(self, error: Exception) -> None:
        self.error = error

    def write_all(self, batches: Sequence[Batch]) -> list[Exception]:
        return [self.error] * len(batches)


@pytest.mark.parametrize(
    ("error", "status"),
    [(BatchError("the times go backwards"), 422), (StoreError("the disk is full"), 503)],
)
def test_what_the_store_refuses(error: Exception, status: int) -> None:
    store: Any = _Failing(error)
    client = TestClient(create_app(store, TOKEN), base_url="http://localhost")
    answer = client.post(
        "/api/v1/batches",
        content=wire.encode(batch()),
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    assert (answer.status_code, answer.json()["detail"]) == (status, str(error))
    assert ("Retry-After" in answer.headers) is (status == 503)


def test_the_description_names_every_reply(client: TestClient) -> None:
    described = client.get("/api/v1/openapi.json").json()
    assert set(described["paths"]) == {
        "/api/v1/jobs",
        "/api/v1/jobs/{run}",
        "/api/v1/jobs/{run}/fit",
        "/api/v1/jobs/{run}/series",
        "/api/v1/jobs/{run}/report.pdf",
        "/api/v1/jobs/{run}/report.html",
        "/api/v1/jobs/{run}/plots/{name}.svg",
        "/api/v1/jobs/{run}/explain",
        "/api/v1/jobs/{run}/findings/{kind}/acknowledge",
        "/api/v1/jobs/{run}/findings/{kind}/not-helpful",
        "/api/v1/jobs/{run}/findings/{kind}/reopen",
        "/api/v1/findings",
        "/api/v1/findings/summary",
        "/api/v1/findings/effect",
        "/api/v1/metrics",
        "/api/v1/health",
        "/api/v1/usage",
        "/api/v1/software",
        "/api/v1/discovery",
        "/api/v1/batches",
        "/api/v1/jobs/{run}/programs",
        "/api/v1/jobs/{run}/software",
        "/api/v1/jobs/{run}/steps",
        "/api/v1/jobs/{run}/nodes",
        "/api/v1/jobs/{run}/gpus",
        "/api/v1/jobs/{run}/findings",
        "/api/v1/jobs/{run}/properties",
        "/api/v1/jobs/{run}/properties/{name}",
        "/api/v1/jobs/{run}/samples",
        "/api/v1/arrays/{array}",
        "/api/v1/scripts",
        "/api/v1/scripts/{key}",
        "/api/v1/clusters",
        "/api/v1/clusters/{cluster}",
        "/api/v1/clusters/{cluster}/nodes/{node}",
        "/api/v1/nodes",
        "/api/v1/nodes/{cluster}/{node}/series",
        "/api/v1/partitions",
        "/api/v1/reservations",
        "/api/v1/qos",
        "/api/v1/gpus",
        "/api/v1/gpus/{gpu}",
        "/api/v1/users",
        "/api/v1/users/{user}",
        "/api/v1/accounts",
        "/api/v1/accounts/{account}",
    }
    references = set()

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            references.update(value for key, value in part.items() if key == "$ref")
            for value in part.values():
                walk(value)
        elif isinstance(part, list):
            for value in part:
                walk(value)

    walk(described)
    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert references <= known


def test_unexpected_faults_tell_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("the inner works")

    monkeypatch.setattr(store, "page_of_runs", fail, raising=False)
    app = create_app(store, TOKEN)
    client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
    answer = client.get("/api/v1/jobs", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 500
    assert "inner works" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/api/v1/jobs/99", "/jobs/99"])
def test_the_place_of_the_store_is_not_told(client: TestClient, filled: Store, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "o run of job 99 is in the store" in answer.text
    assert filled.database.where not in answer.text
    assert "store.db" not in answer.text
