"""An auditor sees figures and pseudonyms in the API, and no name."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from jobsight.access.viewer import Role
from jobsight.model import SECOND
from jobsight.server.app import create_app
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.store import Store
from tests.server.conftest import TOKEN
from tests.server.site import HOST, client_of, fill

#: What users wrote, and their names.
SECRETS = ("alice", "bob", "physics", "multiply", "sweep", "[other]")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("audit") / "store.db") as store:
        fill(store)
        client_of(store).patch("/api/v1/jobs/12/properties", json={"note": "of alice"})
        yield store


@pytest.fixture(scope="module")
def auditor(site: Store) -> TestClient:
    UserAccounts(site.database).add("eve", Role.AUDITOR)
    _, token = UserTokens(site.database).add("eve", "read", 3600 * SECOND)
    client = TestClient(create_app(site, TOKEN, delay=0), base_url=HOST)
    client.headers["Authorization"] = f"Bearer {token}"
    return client


@pytest.mark.parametrize(
    "path",
    [
        *("jobs", "jobs?state=PENDING", "jobs/12", "jobs/90", "jobs/12/series"),
        *("jobs/12/programs", "jobs/12/software", "jobs/12/steps", "jobs/12/nodes"),
        *("jobs/12/gpus", "jobs/12/findings", "jobs/12/samples", "arrays/62", "findings"),
        *("findings/summary?by=user", "findings/effect", "usage?by=user", "software"),
        *("accounts", "clusters", "nodes", "reservations", "gpus"),
    ],
)
def test_no_reply_has_a_name(auditor: TestClient, path: str) -> None:
    reply = auditor.get(f"/api/v1/{path}")
    assert reply.status_code == 200
    assert reply.json()
    for secret in SECRETS:
        assert secret not in reply.text


def test_a_pseudonym_is_the_same_everywhere(auditor: TestClient) -> None:
    rows = auditor.get("/api/v1/jobs").json()["jobs"]
    users = {row["user"] for row in rows}
    assert len(users) == 2
    assert all(user.startswith("user-") for user in users)
    assert {row["user"] for row in auditor.get("/api/v1/usage?by=user").json()["rows"]} == users
    assert auditor.get("/api/v1/jobs/12").json()["user"] in users
    row = next(row for row in rows if row["job_id"] == 12)
    assert row["cpu_seconds"] == 10
    assert row["name"].startswith("job-")
    assert row["account"].startswith("account-")


@pytest.mark.parametrize("path", ["report.html", "plots/cpu.svg"])
def test_no_file_has_a_name(auditor: TestClient, path: str) -> None:
    reply = auditor.get(f"/api/v1/jobs/12/{path}")
    assert reply.status_code == 200
    for secret in SECRETS:
        assert secret not in reply.text


@pytest.mark.parametrize(
    "query",
    [
        *("user=alice", "account=physics", "search=multiply", "name=multiply", "property=note"),
        *("sort=user", "sort=-name"),
    ],
)
def test_filters_do_not_tell_names(auditor: TestClient, query: str) -> None:
    assert auditor.get(f"/api/v1/jobs?{query}").status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        *("users", "users/alice", "accounts/physics", "jobs/12/properties", "scripts"),
        *("jobs/12/explain",),
    ],
)
def test_what_is_about_names_is_not_there(auditor: TestClient, path: str) -> None:
    assert auditor.get(f"/api/v1/{path}").status_code == 404
