"""Sessions of people: sign-in by password, what each role sees, CSRF, the end of a session."""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from jobsight.access.passwords import hash_password, verify_password
from jobsight.config.settings import AccessSettings, LdapSettings, Settings
from jobsight.model import SECOND
from jobsight.server.app import create_app
from jobsight.server.auth.attempts import WINDOW, Attempts
from jobsight.server.serve import BackgroundServer
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.coordinators import record_coordinators
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.store import Store
from tests.server.batches import batch
from tests.server.conftest import SETTINGS, TOKEN
from tests.user import NOBODY
from tests.waiting import wait_until

PASSWORD = "correct horse battery"
HASH = hash_password(PASSWORD)
DAY = 86400 * SECOND


@pytest.fixture
def accounts(filled: Store) -> UserAccounts:
    """Run 12 is alice's, run 13 bob's."""
    made = UserAccounts(filled.database)
    made.add("alice", "user", password_hash=HASH)
    made.add("carol", "staff", password_hash=HASH)
    return made


@pytest.fixture
def browser(filled: Store, accounts: UserAccounts) -> TestClient:
    return client_of(filled)


def client_of(store: Store, **access: object) -> TestClient:
    settings = AccessSettings(**access)  # type: ignore[arg-type]
    app = create_app(store, TOKEN, delay=0, settings=SETTINGS, access=settings)
    return TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False)


def sign_in(client: TestClient, user: str, password: str = PASSWORD, target: str = "/") -> int:
    form = {"username": user, "password": password, "next": target}
    return client.post("/sign-in", data=form).status_code


def csrf_of(client: TestClient) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', client.get("/").text)
    assert found is not None
    return found[1]


def jobs(client: TestClient) -> list[int]:
    return sorted(job["job_id"] for job in client.get("/api/v1/jobs").json()["jobs"])


def test_a_user_sees_the_own_jobs(browser: TestClient) -> None:
    assert browser.get("/jobs/12").status_code == 401
    answer = browser.post(
        "/sign-in", data={"username": "alice", "password": PASSWORD, "next": "/jobs/12?a=1"}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/12?a=1")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert jobs(browser) == [12]
    assert browser.get("/jobs/12").status_code == 200
    # Another user's run is the same as one that does not exist.
    for path in ("/jobs/{}", "/api/v1/jobs/{}", "/api/v1/jobs/{}/series"):
        other, unknown = (browser.get(path.format(number)) for number in (13, 99))
        assert other.status_code == unknown.status_code == 404
        assert re.sub(r"\b13\b", "99", other.text) == unknown.text
    for path in ("/metrics", "/operations", "/api/v1/health", "/api/v1/discovery"):
        assert browser.get(path).status_code == 404, path
    assert sign_in(browser, "carol") == 303
    assert jobs(browser) == [12, 13]
    assert browser.get("/metrics").status_code == 200


def test_coordinators_see_their_accounts_as_of_the_time_of_the_run(
    browser: TestClient, filled: Store
) -> None:
    start = {run.info.job_id: run.start for run in filled.runs()}[13]
    account = next(run.info.account for run in filled.runs() if run.info.job_id == 13)
    assert account is not None
    record_coordinators(filled.database, "alpha", [], now=1)
    sign_in(browser, "alice")
    for since, until, seen in ((start, None, [12, 13]), (start + 1, None, [12])):
        with filled.database.write() as transaction:
            transaction.execute("DELETE FROM coordinators")
        record_coordinators(filled.database, "alpha", [(account, "alice")], now=since)
        assert (jobs(browser), until) == (seen, None)
    with filled.database.write() as transaction:
        transaction.execute("DELETE FROM coordinators")
    record_coordinators(filled.database, "alpha", [(account, "alice")], now=start - 10)
    record_coordinators(filled.database, "alpha", [], now=start)
    assert jobs(browser) == [12]
    record_coordinators(filled.database, "alpha", [(account, "alice")], now=start)
    assert jobs(browser) == [12, 13]
    assert jobs_without_slurm(filled) == [12]


def jobs_without_slurm(store: Store) -> list[int]:
    client = client_of(store, slurm_coordinators=False)
    sign_in(client, "alice")
    return jobs(client)


def test_a_mentor_sees_the_named_accounts(
    browser: TestClient, accounts: UserAccounts, filled: Store
) -> None:
    account = next(run.info.account for run in filled.runs() if run.info.job_id == 13)
    assert account is not None
    accounts.add("mia", "mentor", accounts=[account], password_hash=HASH)
    sign_in(browser, "mia")
    expected = [run.info.job_id for run in filled.runs() if run.info.account == account]
    assert jobs(browser) == sorted(expected)


@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "wrong password"), ("nobody", PASSWORD), ("", PASSWORD), ("alice", ""), ("bob", "")],
)
def test_a_wrong_password_and_a_wrong_name_are_the_same(
    browser: TestClient, accounts: UserAccounts, user: str, password: str
) -> None:
    accounts.add("bob", "user")
    answer = browser.post("/sign-in", data={"username": user, "password": password, "next": "/"})
    if not password:
        # An empty field is not sent by the parser: it is an attempt with the token then.
        assert answer.status_code == 401
        return
    assert answer.status_code == 401
    assert "The user name or the password is invalid." in answer.text
    assert "set-cookie" not in answer.headers


def test_local_passwords_can_be_switched_off(filled: Store, accounts: UserAccounts) -> None:
    assert sign_in(client_of(filled, local=False), "alice") == 401


@pytest.mark.parametrize("target", ["//evil.example", "/\\evil.example", "https://evil.example"])
def test_a_sign_in_stays_on_this_server(browser: TestClient, target: str) -> None:
    form = {"username": "alice", "password": PASSWORD, "next": target}
    location = browser.post("/sign-in", data=form).headers["location"]
    assert re.match(r"/[^/\\]", location)


def test_disabled_means_disabled_at_once(
    browser: TestClient, accounts: UserAccounts, filled: Store
) -> None:
    sign_in(browser, "alice")
    _, token = UserTokens(filled.database).add("alice", "read", DAY)
    program = client_of(filled)
    program.headers["Authorization"] = f"Bearer {token}"
    assert jobs(browser) == jobs(program) == [12]
    accounts.disable("alice")
    assert browser.get("/api/v1/jobs").status_code == 401
    answer = program.get("/api/v1/jobs")
    assert answer.status_code == 401
    assert "the account alice is disabled" in answer.json()["detail"]
    refused = browser.post("/sign-in", data={"username": "alice", "password": PASSWORD})
    assert (refused.status_code, "account is disabled" in refused.text) == (401, True)
    accounts.enable("alice")
    # A session does not come back, a token does.
    assert browser.get("/api/v1/jobs").status_code == 401
    assert jobs(program) == [12]


def test_tokens_of_users(filled: Store, accounts: UserAccounts) -> None:
    tokens = UserTokens(filled.database)
    read, write = (tokens.add("alice", scope, DAY)[1] for scope in ("read", "write"))  # type: ignore[arg-type]
    client = client_of(filled)

    def post(token: str) -> int:
        path = "/api/v1/jobs/12/findings/none/acknowledge"
        headers = {"Authorization": f"Bearer {token}"}
        return client.post(path, json={"user": "alice"}, headers=headers).status_code

    assert post(read) == 403
    # The finding does not exist; the token permits to say something about it.
    assert post(write) == 404
    headers = {"Authorization": f"Bearer {read}"}
    assert client.get("/api/v1/jobs/13", headers=headers).status_code == 404
    tokens.revoke(tokens.list("alice")[0].id)
    answer = client.get("/api/v1/jobs", headers=headers)
    assert (answer.status_code, "was revoked" in answer.json()["detail"]) == (401, True)
    wrong = {"Authorization": f"Bearer {read[:-2]}xx"}
    assert client.get("/api/v1/jobs", headers=wrong).status_code == 401
    # A user's token does not send batches.
    headers = {"Authorization": f"Bearer {write}"}
    assert client.post("/api/v1/batches", content=b"x", headers=headers).status_code == 404


def test_failed_attempts_are_limited(filled: Store, accounts: UserAccounts) -> None:
    client = client_of(filled, max_failures=2)
    assert [sign_in(client, "alice", "wrong") for _ in range(3)] == [401, 401, 429]
    answer = client.post("/sign-in", data={"username": "alice", "password": PASSWORD})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) <= WINDOW
    assert sign_in(client, "carol") == 303


def test_servers_of_one_store_have_one_limit(filled: Store, accounts: UserAccounts) -> None:
    first, second = (client_of(filled, max_failures=2) for _ in range(2))
    assert [sign_in(client, "alice", "wrong") for client in (first, second)] == [401, 401]
    assert sign_in(first, "alice", PASSWORD) == sign_in(second, "alice", PASSWORD) == 429
    assert sign_in(second, "carol") == 303


# All of them were verified before one was counted.
def test_parallel_attempts_are_limited(
    filled: Store, accounts: UserAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, refused, released = [], [], threading.Event()

    def verify(password_hash: str | None, password: str) -> bool:
        entered.append(password)
        assert released.wait(60)
        return verify_password(password_hash, password)

    monkeypatch.setattr("jobsight.server.auth.sign_in.verify_password", verify)
    clients = [client_of(filled, max_failures=2) for _ in range(6)]

    def attempt(number: int) -> int:
        status = sign_in(clients[number], "alice", f"wrong {number}")
        refused.extend([number] if status == 429 else [])
        return status

    with ThreadPoolExecutor(6) as pool:
        attempts = [pool.submit(attempt, number) for number in range(6)]
        try:
            wait_until(lambda: len(entered) + len(refused) == 6)
        finally:
            released.set()
        statuses = sorted(each.result() for each in attempts)
    assert statuses == [401, 401, 429, 429, 429, 429]
    assert len(entered) == 2


# A wrong token could be tried without a limit.
def test_failed_attempts_with_the_servers_token_are_limited(
    filled: Store, accounts: UserAccounts
) -> None:
    def enter(token: str) -> int:
        return client.post("/sign-in", data={"token": token}).status_code

    client = client_of(filled, max_failures=2)
    assert [enter(token) for token in ("a", TOKEN, "b", "c", "d")] == [401, 303, 401, 401, 429]
    answer = client.post("/sign-in", data={"token": TOKEN})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) <= WINDOW
    # Accounts of the address are not concerned, and no name of an account is the token's.
    assert sign_in(client, "carol") == 303
    other = client_of(filled, max_failures=3)
    assert [sign_in(other, "\0token", "wrong") for _ in range(3)] == [401, 401, 401]
    assert other.post("/sign-in", data={"token": TOKEN}).status_code == 303


def test_an_attempt_that_could_not_be_verified_is_not_counted(
    filled: Store, accounts: UserAccounts
) -> None:
    with socket.socket() as closed:
        # Nobody listens.
        closed.bind(("127.0.0.1", 0))
        directory = LdapSettings(
            url=f"ldap://127.0.0.1:{closed.getsockname()[1]}", bind_template="uid={user}"
        )
        client = client_of(filled, max_failures=2, ldap=directory)
        assert [sign_in(client, "dora", "any") for _ in range(3)] == [503, 503, 503]
    assert [sign_in(client, "alice", "wrong") for _ in range(3)] == [401, 401, 429]


def test_the_limits_of_attempts(filled: Store) -> None:
    now = 0
    attempts = Attempts(filled.database, 2, key=b"key", clock=lambda: now, most=150)
    for number in range(12):
        assert attempts.begin(f"user{number}", "a") == 0
    # One address that tries many accounts.
    assert attempts.begin("alice", "a") > 0
    assert attempts.begin("alice", "b") == 0
    for number in range(39):
        assert attempts.begin("alice", f"address{number}") == 0
    # One account that is tried from many addresses; others are not concerned.
    assert attempts.begin("alice", "b") > 0
    assert attempts.begin("carol", "b") == 0
    now = WINDOW * SECOND
    # What succeeds counts nowhere, what fails counts until the account succeeds.
    for _ in range(50):
        assert attempts.begin("alice", "b") == 0
        attempts.succeed("alice", "b")
    assert [attempts.begin("alice", "b") == 0 for _ in range(3)] == [True, True, False]
    attempts.succeed("alice", "b")
    assert attempts.begin("alice", "b") == 0
    attempts.withdraw("alice", "b")
    assert [attempts.begin("alice", "b") == 0 for _ in range(3)] == [True, True, False]
    for number in range(100):
        now += 1
        assert attempts.begin(f"{number}", f"{number}") == 0
    with filled.database.query() as transaction:
        [rows] = transaction.execute("SELECT count(*) FROM sign_in_failures").fetchone()
    assert rows == 150
    # The newest are kept, and no name is in the store.
    assert attempts.begin("99", "99") == 0
    assert attempts.begin("99", "99") > 0
    with filled.database.query() as transaction:
        keys = transaction.execute("SELECT key FROM sign_in_failures").fetchall()
    assert all(b"alice" not in bytes(key) and len(bytes(key)) == 16 for (key,) in keys)


def test_a_form_needs_its_token_and_its_origin(browser: TestClient) -> None:
    sign_in(browser, "alice")
    csrf = csrf_of(browser)
    refused = [
        browser.post("/sign-out"),
        browser.post("/sign-out", data={"csrf": "x" * 64}),
        browser.post("/sign-out", data={"csrf": csrf}, headers={"Sec-Fetch-Site": "same-site"}),
        browser.post("/sign-out", data={"csrf": csrf}, headers={"Origin": "http://127.0.0.1:9090"}),
        browser.post("/sign-out", data={"csrf": csrf}, headers={"Origin": "null"}),
        browser.post("/sign-out", json={"csrf": csrf}),
        browser.post(
            "/sign-out", content=b"csrf=" + b"x" * 100_000, headers={"Content-Type": FORM}
        ),
    ]
    assert [answer.status_code for answer in refused] == [403] * 6 + [413]
    assert browser.get("/sign-out").status_code == 405
    assert jobs(browser) == [12]
    headers = {"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}
    answer = browser.post("/sign-out", data={"csrf": csrf}, headers=headers)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert browser.get("/api/v1/jobs").status_code == 401


FORM = "application/x-www-form-urlencoded"


def test_the_token_of_one_session_is_not_that_of_another(
    browser: TestClient, filled: Store
) -> None:
    sign_in(browser, "alice")
    other = client_of(filled)
    sign_in(other, "carol")
    assert browser.post("/sign-out", data={"csrf": csrf_of(other)}).status_code == 403


def test_a_form_of_another_site_does_not_sign_in(browser: TestClient) -> None:
    """Otherwise a page could sign a browser in as its own user, and read what is entered then."""
    form = {"username": "alice", "password": PASSWORD}
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        assert browser.post("/sign-in", data=form, headers=headers).status_code == 403


def test_sessions_end(filled: Store, accounts: UserAccounts) -> None:
    client = client_of(filled, session_idle=1, session_lifetime=2)
    sign_in(client, "alice")
    assert jobs(client) == [12]
    with filled.database.write() as transaction:
        transaction.execute("UPDATE sessions SET last_seen = last_seen - 3601000000000")
    assert client.get("/api/v1/jobs").status_code == 401
    sign_in(client, "alice")
    with filled.database.write() as transaction:
        transaction.execute("UPDATE sessions SET expires = expires - 7201000000000")
    assert client.get("/api/v1/jobs").status_code == 401


def test_another_token_of_the_server_ends_its_sessions(filled: Store) -> None:
    client = client_of(filled)
    assert client.post("/sign-in", data={"token": TOKEN}).status_code == 303
    assert jobs(client) == [12, 13]
    app = create_app(filled, TOKEN + "-2", delay=0, settings=SETTINGS)
    other = TestClient(app, base_url="http://127.0.0.1:8080", cookies=client.cookies)
    assert other.get("/api/v1/jobs").status_code == 401


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    settings = Settings()
    settings.store.location = str(tmp_path_factory.mktemp("sessions") / "store.db")
    settings.server.port = 0
    with BackgroundServer(settings) as running:
        yield running


REPLAY = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("GET", "/api/v1/jobs", headers={"Cookie": sys.argv[2]})
print(connection.getresponse().status)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as two users of the machine needs root")
def test_a_cookie_is_of_no_use_to_another_user_of_the_machine(server: BackgroundServer) -> None:
    """S-12: a browser sends the cookie to every port of the host, so to a neighbour's server."""
    import http.client

    port = int(server.url.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/?" + server.sign_in_url().partition("?")[2])
    answer = connection.getresponse()
    cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
    connection.close()
    assert answer.status == 303

    def replayed(user: int) -> str:
        command = [sys.executable, "-I", "-c", REPLAY, str(port), cookie]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, user=user, cwd="/", timeout=60
        )
        return done.stdout.strip()

    assert replayed(0) == "200"
    assert replayed(NOBODY) == "401"


def test_the_user_of_a_peer_by_both_versions_of_ip() -> None:
    import socket

    from jobsight.server.auth.peers import _look_up

    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            try:
                listener.bind((address, 0))
            except OSError:
                pytest.skip(f"no {address} on this machine")
            listener.listen()
            with socket.create_connection(listener.getsockname()[:2]):
                accepted, _ = listener.accept()
                with accepted:
                    assert _look_up(accepted) == (address, os.geteuid())


def test_batches_are_not_sent_by_a_browser(browser: TestClient, tmp_path: Path) -> None:
    browser.post("/sign-in", data={"token": TOKEN})
    from jobsight.transport.wire import encode

    for headers in ({}, {"X-CSRF-Token": csrf_of(browser)}):
        answer = browser.post("/api/v1/batches", content=encode(batch(14)), headers=headers)
        assert answer.status_code == 401
