"""The pages of settings and accounts, without a browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from jobsight.access.passwords import hash_password
from jobsight.server.app import create_app
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.preferences import read_preferences
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.store import Store

PASSWORD = "correct horse battery"
HASH = hash_password(PASSWORD)
TOKEN = "a-token-for-the-tests-of-the-pages"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        accounts = UserAccounts(opened.database)
        for name, role in (("alice", "user"), ("carol", "staff")):
            accounts.add(name, role, password_hash=HASH)
        yield opened


def signed_in(store: Store, user: str) -> TestClient:
    app = create_app(store, TOKEN, delay=0)
    client = TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False)
    form = {"username": user, "password": PASSWORD, "next": "/settings"}
    assert client.post("/sign-in", data=form).status_code == 303
    return client


def post(client: TestClient, path: str, **form: str) -> tuple[int, str]:
    csrf = re.search(r'name="csrf" value="(\w+)"', client.get(path).text)
    assert csrf is not None
    answer = client.post(path, data={"csrf": csrf[1]} | form)
    return answer.status_code, answer.text


def test_display_is_remembered(store: Store) -> None:
    client = signed_in(store, "alice")
    chosen = {"language": "fr", "time_zone": "Europe/Paris", "rows": "100"}
    assert post(client, "/settings", action="preferences", **chosen)[0] == 303
    found = read_preferences(store.database, "alice")
    assert (found.language, found.time_zone, found.rows) == ("fr", "Europe/Paris", 100)
    for name, value in (("language", "xx"), ("time_zone", "../etc/passwd"), ("rows", "7")):
        status, text = post(client, "/settings", action="preferences", **{name: value})
        assert (status, 'role="alert"' in text) == (422, True)
    assert read_preferences(store.database, "alice") == found


def test_sessions_are_listed_and_ended(store: Store) -> None:
    client, other = signed_in(store, "alice"), signed_in(store, "alice")
    assert client.get("/settings").text.count("(this one)") == 1
    stranger = signed_in(store, "carol")
    ids = re.findall(r'name="session" value="(\w{16})"', other.get("/settings").text)
    assert len(ids) == 2
    # The session of another user is not ended.
    for id in ids:
        assert post(stranger, "/settings", action="close-session", session=id)[0] == 303
    assert client.get("/settings").status_code == other.get("/settings").status_code == 200
    assert post(client, "/settings", action="close-session", session="all")[0] == 303
    assert client.get("/settings").status_code == other.get("/settings").status_code == 401


def test_tokens_are_created_and_revoked(store: Store) -> None:
    client = signed_in(store, "alice")
    status, text = post(
        client, "/settings", action="add-token", label="laptop", scope="read", days="90"
    )
    assert status == 200
    token = re.search(r"jobsight-user-[\w-]+", text)
    assert token is not None
    assert token[0] not in client.get("/settings").text
    found = UserTokens(store.database).find(token[0])
    assert found is not None
    number = str(found[0].id)
    stranger = signed_in(store, "carol")
    assert post(stranger, "/settings", action="revoke-token", token=number)[0] == 422
    assert post(client, "/settings", action="revoke-token", token=number)[0] == 303
    assert "revoked" in client.get("/settings").text
    for token_id in ("", "x", "9" * 30):
        assert post(client, "/settings", action="revoke-token", token=token_id)[0] == 422
    assert post(client, "/settings", action="add-token", days="9999")[0] == 422
    assert post(client, "/settings", action="nonsense")[0] == 422


def test_the_password_is_changed_by_who_knows_it(store: Store) -> None:
    client = signed_in(store, "alice")
    new = "another password"
    for old, first, second in (("x", new, new), (PASSWORD, new, "y"), (PASSWORD, "short", "short")):
        form = {"old": old, "new": first, "again": second}
        assert post(client, "/settings", action="password", **form)[0] == 422
    form = {"old": PASSWORD, "new": new, "again": new}
    assert post(client, "/settings", action="password", **form)[0] == 303
    assert client.get("/settings").status_code == 401


def test_staff_change_accounts_but_not_their_own(store: Store) -> None:
    path = "/operations/accounts"
    assert signed_in(store, "alice").get(path).status_code == 404
    client = signed_in(store, "carol")
    accounts = UserAccounts(store.database)
    form = {"user": "alice", "action": "role", "role": "mentor", "accounts": "physics, chemistry"}
    assert post(client, path, **form)[0] == 303
    assert accounts.get("alice").accounts == ("chemistry", "physics")
    assert post(client, path, user="alice", action="disable")[0] == 303
    assert accounts.get("alice").disabled is not None
    assert post(client, path, user="alice", action="enable")[0] == 303
    for wrong in (
        {"user": "carol", "action": "disable"},
        {"user": "nobody", "action": "disable"},
        {"user": "alice", "action": "role", "role": "king"},
        {"user": "alice", "action": "role", "role": "mentor"},
        {"user": "alice", "action": "erase"},
    ):
        assert post(client, path, **wrong)[0] == 422
    assert accounts.get("carol").disabled is None


def test_a_program_does_not_change_settings(store: Store) -> None:
    _, token = UserTokens(store.database).add("carol", "write", 10**15)
    app = create_app(store, TOKEN, delay=0)
    client = TestClient(app, base_url="http://127.0.0.1:8080")
    client.headers["Authorization"] = f"Bearer {token}"
    assert client.get("/settings").status_code == 200
    assert client.post("/settings", data={"action": "add-token", "days": "90"}).status_code == 403
    form = {"user": "alice", "action": "disable"}
    assert client.post("/operations/accounts", data=form).status_code == 403
