"""A hidden run and an unknown run go through the same statements, on every route that takes one.

Then the time of an answer says nothing either: no durations are compared here.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobsight.config.settings import ServerSettings
from jobsight.findings.worker import Measured, update_all
from jobsight.server.app import create_app
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.findings.works import WorkKey, find_or_add_work
from jobsight.store.history import store_script, works_of_key
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from jobsight.store.transaction import Transaction
from tests.findings.judge import ToldJudge
from tests.server.batches import batch
from tests.server.routes import body_of, routes

TOKEN = "a-token-for-the-tests-of-the-statements"
DAY = 86400 * 10**9
HIDDEN, UNKNOWN = 13, 99
SCRIPT_KEY = bytes(range(16))
NO_BODY: Mapping[str, Any] = {}
PLACES = {"kind": "none", "metric": "cpu", "name": "cpu"}


class ScriptJudge(ToldJudge):
    """Assigns each run of bob to one script."""

    def __init__(self, store: Store) -> None:
        super().__init__(lambda figures: [])
        self._store = store

    def measure(self, run: StoredRun, now: int) -> Measured:
        work = WorkKey("alpha", "bob", "chemistry", "script", SCRIPT_KEY, "multiply")
        id = find_or_add_work(self._store.database, work) if run.info.user == "bob" else None
        return Measured(super().measure(run, now).figures, id)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("statements") / "store.db") as opened:
        assert opened.write(batch(12))
        assert opened.write(batch(HIDDEN, user="bob", account="chemistry"))
        other = {"user": "bob", "account": "chemistry"}
        for number in (1, 2):
            sent = batch(70 + number, array_job_id=70, array_task_id=number, **other)
            assert opened.write(sent)
        store_script(opened.database, "alpha", [HIDDEN], SCRIPT_KEY, "#!/bin/sh\n")
        update_all(opened, ScriptJudge(opened))
        assert works_of_key(opened.database, SCRIPT_KEY)
        UserAccounts(opened.database).add("alice", "user")
        UserAccounts(opened.database).add("carol", "coordinator", accounts=["physics"])
        yield opened


@pytest.fixture(scope="module")
def app(store: Store) -> Any:
    settings = ServerSettings(petricore_routes=True, clockwork_routes=True)
    return create_app(store, TOKEN, delay=0, settings=settings)


@pytest.fixture(scope="module")
def clients(store: Store, app: Any) -> dict[str, TestClient]:
    made = {}
    for name in ("alice", "carol"):
        client = TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False)
        _, token = UserTokens(store.database).add(name, "write", DAY)
        client.headers["Authorization"] = f"Bearer {token}"
        made[name] = client
    return made


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The texts of the statements that are executed, in their order."""
    texts: list[str] = []
    execute, look_up = Transaction.execute, Transaction.look_up

    def noted(self: Transaction, sql: str, *values: Any) -> Any:
        texts.append(sql)
        return execute(self, sql, *values)

    def noted_keys(self: Transaction, sql: str, keys: Any) -> Any:
        texts.append(f"{len(keys)} keys: {sql}")
        return look_up(self, sql, keys)

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "execute", noted)
        patched.setattr(Transaction, "look_up", noted_keys)
        yield texts


def statements(
    client: TestClient,
    method: str,
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    body: Mapping[str, Any] = NO_BODY,
) -> tuple[int, list[str]]:
    # What a first request reads for all later ones is not counted.
    client.request(method, address, **body)
    with recorded(monkeypatch) as texts:
        answer = client.request(method, address, **body)
        return answer.status_code, list(texts)


def run_routes(app: Any) -> list[tuple[str, str]]:
    found = {
        (method, path)
        for path, method in routes(app)
        if re.search(r"\{(run|job|array|reference)\}", path) and method != "HEAD"
    }
    found |= {
        ("GET", "/compare?run=12&run={run}"),
        ("GET", "/api/v1/jobs?search={run}"),
        ("GET", "/jobs?search={run}"),
        ("GET", "/api/v1/clusters/jobs/one?job_id={run}&cluster_name=alpha"),
        ("GET", "/api/v1/clusters/jobs/list?job_id={run}"),
        ("GET", "/api/v1/clusters/jobs/user_props/get?job_id={run}&cluster_name=alpha"),
        ("PUT", "/api/v1/clusters/jobs/user_props/set"),
        ("PUT", "/api/v1/clusters/jobs/user_props/delete"),
    }
    return sorted(found)


@pytest.mark.parametrize("viewer", ["alice", "carol"])
def test_a_hidden_run_costs_the_statements_of_an_unknown_one(
    clients: dict[str, TestClient], app: Any, viewer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, compared = clients[viewer], 0
    for method, path in run_routes(app):
        address = path.replace("{reference}", "alpha:{array}")
        address = re.sub(r"\{(kind|metric|name)\}", lambda match: PLACES[match[1]], address)
        ids = (70, 98) if "{array}" in address else (HIDDEN, UNKNOWN)
        hidden, unknown = (
            statements(
                client,
                method,
                re.sub(r"\{(run|job|array)\}", str(id), address),
                monkeypatch,
                body_of(path, method, id),
            )
            for id in ids
        )
        assert hidden == unknown, (method, address)
        # A refusal of the request itself would say nothing about runs.
        assert hidden[0] in (200, 404), (method, address)
        compared += bool(hidden[1])
    assert compared > 30


#: Users, accounts and scripts that exist, and some that do not.
SUBJECTS = {
    "user": ("bob", "nobody"),
    "account": ("chemistry", "nothing"),
    "script": (SCRIPT_KEY.hex(), "ab" * 16),
}


def subject_routes(app: Any) -> list[tuple[str, str]]:
    """The kind of the subject, and the address of each route about one."""
    parameters = {"user": "user", "account": "account", "key": "script"}
    named = {"/users/{name:path}": "user", "/accounts/{name:path}": "account"}
    found = {
        (parameters[match[1]], path.replace(match[0], "{}"))
        for path, method in routes(app)
        if method == "GET" and (match := re.search(r"\{(user|account|key)\}", path))
    }
    found |= {(kind, path.replace("{name:path}", "{}")) for path, kind in named.items()}
    for kind in ("user", "account"):
        lists = ("/jobs", "/jobs.csv", "/jobs.json", "/api/v1/jobs", "/api/v1/scripts")
        sums = ("/api/v1/usage", "/api/v1/findings", "/api/v1/findings/summary")
        found |= {(kind, f"{path}?{kind}={{}}") for path in (*lists, *sums)}
    found.add(("user", "/api/v1/clusters/jobs/list?username={}"))
    return sorted(found)


@pytest.mark.parametrize("viewer", ["alice", "carol"])
def test_a_hidden_subject_costs_the_statements_of_an_unknown_one(
    clients: dict[str, TestClient], app: Any, viewer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, found = clients[viewer], subject_routes(app)
    assert {path.partition("?")[0] for _, path in found} > {
        *("/users/{}", "/accounts/{}", "/scripts/{}"),
        *("/api/v1/users/{}", "/api/v1/accounts/{}", "/api/v1/scripts/{}"),
    }
    for kind, path in found:
        hidden, unknown = (
            statements(client, "GET", path.format(each), monkeypatch) for each in SUBJECTS[kind]
        )
        assert hidden == unknown, path
        assert hidden[0] in (200, 404), path


def test_the_statements_are_recorded(
    clients: dict[str, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that may be seen costs more statements: otherwise the test above proves nothing."""
    seen = statements(clients["alice"], "GET", "/api/v1/jobs/12", monkeypatch)
    unknown = statements(clients["alice"], "GET", "/api/v1/jobs/99", monkeypatch)
    assert (seen[0], unknown[0]) == (200, 404)
    assert len(seen[1]) > len(unknown[1])
