"""Whoever sees data of another user is recorded, on every route, and shown to that user."""

import asyncio
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message

from jobsight.access.viewer import VIEWER_IN_SCOPE, Role, Viewer
from jobsight.config.settings import ServerSettings
from jobsight.model import SECOND
from jobsight.server.app import create_app
from jobsight.server.auth.views import MAX_TOLD, ViewLog
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.audit import AuditLog, PageView
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.read.viewed import MAX_OWNERS, MAX_SUBJECTS, ViewedOwners
from jobsight.store.read.visibility import EVERYTHING
from jobsight.store.store import Store
from tests.access.test_pseudonyms import ACCOUNT, SCRIPT_KEY, USER, addresses, fill
from tests.server.batches import START, batch
from tests.server.conftest import TOKEN

DAY = 86400 * SECOND
#: Where the name stands in a path or in a version of software, with sums over all users, or is
#: that of a user account.
NO_VIEWS = (
    *("/programs", "/software", "/api/v1/software", "/api/v1/usage?by=software"),
    "/operations/accounts",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("views") / "store.db") as opened:
        fill(opened)
        accounts = UserAccounts(opened.database)
        for name, role in (("sam", "staff"), ("ann", "auditor"), ("uma", "user"), (USER, "user")):
            accounts.add(name, role)
        accounts.add("mia", "mentor", accounts=[ACCOUNT])
        yield opened


@pytest.fixture(scope="module")
def app(store: Store) -> Any:
    settings = ServerSettings(petricore_routes=True, clockwork_routes=True)
    clock = lambda: START + DAY  # noqa: E731
    return create_app(store, TOKEN, delay=0, settings=settings, clock=clock)


@pytest.fixture(scope="module")
def client_of(store: Store, app: Any) -> Callable[[str], TestClient]:
    @cache
    def made(name: str) -> TestClient:
        client = TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False)
        token = UserTokens(store.database).add(name, "read", 3600 * SECOND)[1]
        client.headers["Authorization"] = f"Bearer {token}"
        return client

    return made


@pytest.fixture
def views(store: Store, client_of: Callable[[str], TestClient]) -> Callable[[str], list[PageView]]:
    """The views of a user's data since the last call."""
    seen: dict[tuple[str, int, str, str], int] = {}
    staff = client_of("sam")

    def read(user: str) -> list[PageView]:
        # The page writes what is in memory.
        assert staff.get("/operations/accounts").status_code == 200
        new = []
        for view in AuditLog(store.database).views_of(user, 1000):
            key = (view.user, view.first // DAY, view.viewer, view.subject)
            if view.count > seen.get(key, 0):
                new.append(view)
            seen[key] = view.count
        return new

    read(USER)
    return read


def test_every_reply_with_a_name_is_recorded(
    client_of: Callable[[str], TestClient], app: Any, views: Callable[[str], list[PageView]]
) -> None:
    """Of all routes of the router: where the name of the user stands, the view is theirs."""
    for viewer in ("sam", "mia"):
        client, told = client_of(viewer), 0
        for address in addresses(app):
            views(USER)
            answer = client.get(address)
            text = answer.text.replace(address, "").replace(f'value="{USER}"', "")
            found = {view.viewer for view in views(USER)}
            if answer.is_success and USER in text and not address.startswith(NO_VIEWS):
                assert found == {viewer}, address
                told += 1
        assert told > 35


@pytest.mark.parametrize(
    ("address", "subject"),
    [
        ("/jobs/12", "alpha:12:"),
        ("/jobs/90", "alpha:90"),
        ("/jobs/12/series.csv", "alpha:12:"),
        (f"/users/{USER}", "the page of the user"),
        (f"/api/v1/users/{USER}", "the page of the user"),
        ("/compare?run=12&run=62_1", "alpha:12:"),
        ("/arrays/alpha:62", "alpha:63:"),
        (f"/scripts/{SCRIPT_KEY.hex()}", f"script {SCRIPT_KEY.hex()}"),
        (f"/api/v1/scripts/{SCRIPT_KEY.hex()}", f"script {SCRIPT_KEY.hex()}"),
        (f"/jobs?user={USER}", "an entry of a list"),
        ("/jobs?state=PENDING", "an entry of a list"),
        (f"/jobs.csv?user={USER}", "an entry of a list"),
        (f"/jobs.json?user={USER}", "an entry of a list"),
        (f"/api/v1/jobs?user={USER}", "an entry of a list"),
        ("/api/v1/jobs?state=PENDING", "an entry of a list"),
        ("/api/v1/jobs/90", "alpha:90"),
        (f"/api/v1/findings?user={USER}", "alpha:12:"),
        (f"/api/v1/findings/summary?user={USER}", "an entry of a list"),
        (f"/api/v1/usage?user={USER}", "an entry of a list"),
        ("/api/v1/usage?by=user", "an entry of a list"),
        ("/api/v1/clusters/jobs/one?job_id=12&cluster_name=alpha", "alpha:12:"),
        ("/api/v1/clusters/jobs/one?job_id=90&cluster_name=alpha", "alpha:90"),
        ("/api/v1/clusters/jobs/list?job_id=12", "an entry of a list"),
        ("/api/v1/clusters/jobs/user_props/get?job_id=12&cluster_name=alpha", "alpha:12:"),
        ("/mail/12", "alpha:12:"),
        ("/pdf/12", "alpha:12:"),
        (f"/accounts/{ACCOUNT}", "alpha:63:"),
        ("/clusters/alpha", "an entry of a list"),
        ("/clusters/alpha/nodes/n1", "alpha:12:"),
        ("/", "an entry of a list"),
    ],
)
def test_the_view_of_each_surface(
    client_of: Callable[[str], TestClient],
    views: Callable[[str], list[PageView]],
    address: str,
    subject: str,
) -> None:
    assert client_of("sam").get(address).status_code == 200
    found = views(USER)
    assert {view.viewer for view in found} == {"sam"}
    assert any(view.subject.startswith(subject) for view in found), found


def viewed(store: Store, log: AuditLog, path: str, app: ASGIApp) -> None:
    """A request of staff for a path, as the server passes it on."""
    viewer = Viewer(name="sam", role=Role.STAFF, visibility=EVERYTHING)
    scope = {"type": "http", "path": path, VIEWER_IN_SCOPE: viewer}

    async def send(message: Message) -> None:
        assert message["status"] == 200

    asyncio.run(ViewLog(app, store=store, log=log)(scope, None, send))  # type: ignore[arg-type]


def test_a_path_is_decoded_once(store: Store) -> None:
    log = AuditLog(store.database)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    viewed(store, log, "/users/per%41cent", app)
    assert "per%41cent" in {view.user for view in log.latest(1000)}
    assert "perAcent" not in {view.user for view in log.latest(1000)}


def test_an_auditors_view_of_pending_jobs_is_told_by_the_name(
    client_of: Callable[[str], TestClient], views: Callable[[str], list[PageView]]
) -> None:
    for address in ("/jobs?state=PENDING", "/jobs/90", "/api/v1/usage?by=user", "/jobs/12"):
        assert client_of("ann").get(address).status_code == 200
        assert {view.viewer for view in views(USER)} == {"ann"}, address


def test_own_data_what_is_hidden_and_refusals_are_no_views(
    client_of: Callable[[str], TestClient], app: Any, views: Callable[[str], list[PageView]]
) -> None:
    for address in addresses(app):
        client_of(USER).get(address)
        client_of("uma").get(address)
        with TestClient(app, base_url="http://127.0.0.1:8080") as administrator:
            administrator.get(address, headers={"Authorization": f"Bearer {TOKEN}"})
    client_of("sam").get("/jobs/99")
    client_of("sam").get("/users/nobody")
    client_of("sam").get("/api/v1/usage?user=nobody")
    assert views(USER) == []
    assert views("nobody") == []


def test_a_page_that_has_not_changed_is_viewed_again(
    client_of: Callable[[str], TestClient], views: Callable[[str], list[PageView]]
) -> None:
    client = client_of("sam")
    first = client.get("/api/v1/jobs/12")
    views(USER)
    again = client.get("/api/v1/jobs/12", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert [view.subject for view in views(USER)] == [first.json()["run"]]


def test_a_list_of_many_users_is_one_view_of_staff_and_one_of_each_of_a_mentor(
    store: Store,
    client_of: Callable[[str], TestClient],
    views: Callable[[str], list[PageView]],
) -> None:
    members = [f"member{number}" for number in range(MAX_TOLD + 1)]
    for number, name in enumerate(members):
        assert store.write(batch(100 + number, user=name, account=ACCOUNT))
    assert client_of("sam").get("/jobs.csv").status_code == 200
    # Everybody is told, by one line.
    told = [(one.user, one.viewer, one.subject) for one in views(members[0])]
    assert told == [("", "sam", "a list of many users")]
    page = client_of("uma").get("/settings").text
    assert "a list of many users" in page
    assert "many users" in client_of("sam").get("/operations/accounts").text
    # A mentor sees few users, and each of them is told.
    assert client_of("mia").get("/jobs.csv").status_code == 200
    for name in members:
        assert [one.viewer for one in views(name) if one.user == name] == ["mia"]


def test_what_was_sent_before_the_client_went_away_is_a_view(store: Store) -> None:
    log = AuditLog(store.database)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.to_thread(store.runs, user=USER)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise OSError("the client closed the connection")

    before = sum(view.count for view in log.views_of(USER, 100))
    with pytest.raises(OSError, match="closed the connection"):
        viewed(store, log, "/jobs.csv", app)
    assert sum(view.count for view in log.views_of(USER, 100)) == before + 1


def test_what_a_request_notes_is_bounded() -> None:
    owners = ViewedOwners()
    for number in range(MAX_OWNERS + 5):
        owners.note(f"user{number}", "")
    for number in range(MAX_SUBJECTS + 5):
        owners.note("user0", f"alpha:{number}")
    for number in range(MAX_SUBJECTS):
        owners.note("user1", f"alpha:{number}")
    found = owners.subjects()
    assert len(found) == MAX_OWNERS
    assert owners.are_more
    # So many runs are a list.
    assert found["user0"] == set()
    assert len(found["user1"]) == MAX_SUBJECTS
