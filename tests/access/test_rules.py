"""Every route of the server has a rule, and every role gets what the rule says.

The table is generated from the router: a new route fails here until it has a rule.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobsight.access.rules import RULES, Rule, rule_of
from jobsight.config.settings import MailSettings, ServerSettings
from jobsight.mail.subscriptions import Subscriptions
from jobsight.server.app import create_app
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.store import Store
from tests.server.batches import batch
from tests.server.routes import body_of, routes

TOKEN = "a-token-for-the-tests-of-the-rules"
DAY = 86400 * 10**9
#: None is a viewer without credentials, "token" the server's token.
VIEWERS = (None, "disabled", "user", "coordinator", "mentor", "auditor", "staff", "token")
#: Those who see nothing: without credentials, and with those of an account that is disabled.
NOBODY = {None, "disabled"}
EVERYTHING = {"auditor", "staff", "token"}
PERMITTED = {
    Rule.PUBLIC: set(VIEWERS),
    Rule.SIGNED_IN: set(VIEWERS) - NOBODY,
    Rule.NAMED: set(VIEWERS) - NOBODY - {"auditor"},
    Rule.OWN_ACCOUNT: set(VIEWERS) - NOBODY - {"token"},
    Rule.OVERSIGHT: EVERYTHING,
    Rule.STAFF: {"staff", "token"},
    Rule.AGENTS: {"token"},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("rules") / "store.db") as opened:
        assert opened.write(batch(12))
        assert opened.write(batch(13, user="bob", account="chemistry", state="FAILED", exit_code=7))
        accounts = UserAccounts(opened.database)
        for role in ("user", "coordinator", "mentor", "auditor", "staff"):
            accounts.add(role, role, accounts=["biology"] if role == "mentor" else ())
        accounts.add("alice", "user")
        accounts.add("disabled", "staff")
        yield opened


@pytest.fixture(scope="module")
def app(store: Store) -> Any:
    settings = ServerSettings(petricore_routes=True, clockwork_routes=True)
    mails = Subscriptions(MailSettings(url="http://127.0.0.1:8080"), b"key")
    return create_app(store, TOKEN, delay=0, settings=settings, subscriptions=mails)


@pytest.fixture(scope="module")
def clients(store: Store, app: Any) -> dict[str | None, TestClient]:
    tokens = UserTokens(store.database)
    made: dict[str | None, TestClient] = {}
    for name in (*VIEWERS, "alice"):
        client = TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False)
        if name is not None:
            secret = TOKEN if name == "token" else tokens.add(name, "write", DAY)[1]
            client.headers["Authorization"] = f"Bearer {secret}"
        made[name] = client
    UserAccounts(store.database).disable("disabled")
    return made


def test_every_route_has_a_rule(app: Any) -> None:
    paths = {path for path, _ in routes(app)}
    assert len(paths) > 60
    assert sorted(paths - RULES.keys()) == []


def test_every_rule_is_that_of_its_path(app: Any) -> None:
    for path, rule in RULES.items():
        assert rule_of(filled(path)) is rule, path


def filled(path: str) -> str:
    """A path with something in the place of its parameters."""
    return re.sub(r"\{[^}]+\}", "x", path)


#: What stands in the place of a parameter: something of the right form that does not exist.
UNKNOWN = {"key": "ab" * 16, "name": "cpu", "metric": "cpu", "reference": "alpha:99"}
#: Routes without parameters in their path that need some in the query.
QUERIES = {
    "/compare": "?run=99&run=98",
    "/api/v1/clusters/gpu/one": "?gpu_name=A100",
    "/api/v1/clusters/jobs/one": "?job_id=99",
    "/api/v1/clusters/jobs/user_props/get": "?job_id=99&cluster_name=alpha",
    "/api/v1/clusters/nodes/one": "?node_name=n99",
    "/api/v1/clusters/nodes/one/gpu": "?node_name=n99",
}
#: What a route without parameters answers to whom its rule permits it, if it is not 200.
ANSWERS = {
    # Its runs do not exist.
    ("/compare", "GET"): {404},
    ("/static", "GET"): {307},
    # The own page in place of a list of users; staff gets the list.
    ("/users", "GET"): {200, 307},
    # Back to the list; the server's token is no account.
    ("/jobs", "POST"): {303, 403},
    # Forms, which a program cannot send.
    ("/settings", "POST"): {403},
    ("/operations/accounts", "POST"): {403},
    # Its link is not signed, and such links are limited.
    ("/unsubscribe", "GET"): {404, 429},
    ("/unsubscribe", "POST"): {404, 429},
    # An empty body is no batch.
    ("/api/v1/batches", "POST"): {400},
    # The job does not exist.
    ("/api/v1/clusters/jobs/user_props/set", "PUT"): {404},
    ("/api/v1/clusters/jobs/user_props/delete", "PUT"): {404},
}


def filled_with_unknown(path: str) -> str:
    return re.sub(r"\{(\w+)[^}]*\}", lambda found: UNKNOWN.get(found[1], "99"), path)


@pytest.mark.parametrize("viewer", VIEWERS)
def test_each_role_gets_what_the_rule_says(
    clients: dict[str | None, TestClient], app: Any, viewer: str | None
) -> None:
    client, asked = clients[viewer], 0
    for path, method in sorted(routes(app)):
        if method == "HEAD":
            continue
        address, body = filled_with_unknown(path), body_of(path, method, "99")
        answer = client.request(method, address + QUERIES.get(path, ""), **body)
        status, shown = answer.status_code, (viewer, method, path, answer.text[:300])
        if viewer in PERMITTED[RULES[path]]:
            expected = {404} if "{" in path else ANSWERS.get((path, method), {200})
            assert status in expected, shown
        elif viewer in NOBODY:
            assert status == 401, shown
            assert viewer is None or "disabled" in answer.text
        else:
            assert status == 404, shown
            unknown = client.request(method, f"{address}/no/such/route", **body).text
            same = answer.text == unknown.replace("/no/such/route", "")
            assert same or RULES[path] is Rule.AGENTS, shown
        asked += 1
    assert asked > 80


def test_a_run_of_another_user_does_not_exist(
    clients: dict[str | None, TestClient], app: Any
) -> None:
    """By guessed id, on every page, in every reply, file, series and change."""
    client = clients["alice"]
    asked = 0
    for path, method in sorted(routes(app)):
        if not re.search(r"\{(run|job)\}", path) or method == "HEAD":
            continue
        address = re.sub(r"\{kind\}", "none", path)
        address = re.sub(r"\{metric\}|\{name\}", "cpu", address)
        other, unknown = (
            client.request(
                method,
                re.sub(r"\{(run|job)\}", str(number), address),
                **body_of(path, method, number),
            )
            for number in (13, 99)
        )
        assert other.status_code == unknown.status_code == 404, (method, address, other.text)
        assert re.sub(r"\b13\b", "99", other.text) == unknown.text, (method, address)
        assert "bob" not in other.text
        asked += 1
    assert asked > 25


def test_the_number_of_jobs_is_that_of_those_that_may_be_seen(
    clients: dict[str | None, TestClient],
) -> None:
    def counted(viewer: str, query: str = "") -> str:
        text = clients[viewer].get(f"/jobs{query}").text
        found = re.search(r'id="total" data-live>([^<]*)', text)
        assert found is not None
        return " ".join(found[1].split())

    assert counted("staff") == "2 runs"
    assert counted("alice") == "1 run"
    # A filter by the other user is one by nobody.
    for query in ("?user={}", "?search={}", "?account={}"):
        for other, unknown in (("bob", "nobody"), ("13", "99"), ("chemistry", "nothing")):
            assert counted("alice", query.format(other)) == counted("alice", query.format(unknown))


@pytest.mark.parametrize(
    "address",
    [
        "/api/v1/jobs",
        "/api/v1/jobs?user=bob",
        "/api/v1/jobs?search=bob",
        "/api/v1/jobs?account=chemistry",
        "/api/v1/users",
        "/api/v1/accounts",
        "/jobs",
        "/jobs?user=bob",
        "/jobs?search=13",
        "/jobs.csv",
        "/jobs.json",
        "/",
        "/accounts",
        "/clusters",
        "/api/v1/clusters/jobs/list",
    ],
)
def test_lists_searches_and_counts_have_only_what_may_be_seen(
    clients: dict[str | None, TestClient], address: str
) -> None:
    answer = clients["alice"].get(address)
    text = answer.text.replace(address, "").replace('value="bob"', "").replace("user=bob", "")
    assert "chemistry" not in text.replace("account=chemistry", "")
    assert ":13:" not in text
    assert "/jobs/13" not in text
    if answer.headers["content-type"].startswith("application/json") and answer.status_code == 200:
        found = answer.json()
        if "jobs" in found:
            assert {job["user"] for job in found["jobs"]} <= {"alice"}
            assert found.get("total", 0) <= 1


def test_other_users_and_accounts_do_not_exist(clients: dict[str | None, TestClient]) -> None:
    client = clients["alice"]
    for path in ("/users/{}", "/accounts/{}", "/api/v1/users/{}", "/api/v1/accounts/{}"):
        known = "bob" if "users" in path else "chemistry"
        other, unknown = client.get(path.format(known)), client.get(path.format("nothing"))
        assert other.status_code == unknown.status_code == 404
        assert other.text.replace(known, "nothing") == unknown.text


def test_views_of_others_are_shown_to_them(
    clients: dict[str | None, TestClient], store: Store
) -> None:
    clients["staff"].get("/jobs/12")
    clients["staff"].get("/api/v1/jobs/12/series")
    clients["staff"].get("/users/alice")
    clients["alice"].get("/jobs/12")
    clients["token"].get("/jobs/12")
    clients["user"].get("/jobs/12")
    page = clients["alice"].get("/settings").text
    assert "the page of the user" in page
    assert re.search(r"alpha:12:\d", page)
    viewed = re.findall(r'<th scope="row">(\w+)</th><td data-label="What">([^<]+)', page)
    assert ("staff", "the page of the user") in viewed
    # An auditor has seen lists, for another test.
    assert {viewer for viewer, _ in viewed} <= {"staff", "auditor"}
    everything = clients["staff"].get("/operations/accounts").text
    assert "the page of the user" in everything


@pytest.mark.parametrize(
    "address",
    [
        "/jobs/12",
        "/jobs",
        "/",
        "/jobs.csv",
        "/jobs.json",
        "/api/v1/jobs",
        "/api/v1/jobs/12",
        "/api/v1/jobs/12/programs",
        "/api/v1/jobs/12/report.html",
        "/api/v1/jobs/12/explain",
        "/api/v1/usage?by=user",
        "/api/v1/usage?by=account",
        "/api/v1/users",
        "/api/v1/accounts",
        "/api/v1/findings",
        "/api/v1/clusters/jobs/list",
        "/users",
        "/accounts",
        "/software",
        "/findings",
        "/mail/12",
        "/api/v1/jobs/12/usage",
    ],
)
def test_an_auditor_sees_pseudonyms(clients: dict[str | None, TestClient], address: str) -> None:
    answer = clients["auditor"].get(address)
    assert answer.status_code in (200, 303, 307, 403, 404)
    for name in ("alice", "bob", "chemistry", "physics", "multiply", "/home/"):
        assert name not in answer.text, name
    named = clients["staff"].get(address)
    if "alice" in named.text and answer.status_code == 200 and "/api/" not in address:
        assert re.search(r"user-[0-9a-f]{8}", answer.text)


def test_nothing_says_whose_pseudonym_it_is(clients: dict[str | None, TestClient]) -> None:
    client = clients["auditor"]
    users = {job["user"] for job in client.get("/api/v1/jobs").json()["jobs"]}
    assert len(users) == 2
    # The same pseudonyms on the pages.
    page = client.get("/jobs").text
    assert all(user in page for user in users)
    for query in ("user=alice", "search=alice", "account=physics", f"user={min(users)}"):
        answer = client.get(f"/api/v1/jobs?{query}")
        assert answer.status_code == 403 or answer.json()["jobs"] == []
        assert not re.search(r"/jobs/alpha:1[23]:", client.get(f"/jobs?{query}").text)
    for path in ("/users/alice", "/api/v1/users/alice", "/accounts/physics"):
        assert client.get(path).status_code == 404
