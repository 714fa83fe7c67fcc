"""A hidden run and an unknown run go through the same statements, on every route that takes one.

Then the time of an answer says nothing either: no durations are compared here.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobsight.config.settings import ServerSettings
from jobsight.server.app import create_app
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.store import Store
from jobsight.store.transaction import Transaction
from tests.server.batches import batch
from tests.server.routes import routes

TOKEN = "a-token-for-the-tests-of-the-statements"
DAY = 86400 * 10**9
HIDDEN, UNKNOWN = 13, 99
PLACES = {"kind": "none", "metric": "cpu", "name": "cpu"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("statements") / "store.db") as opened:
        assert opened.write(batch(12))
        assert opened.write(batch(HIDDEN, user="bob", account="chemistry"))
        other = {"user": "bob", "account": "chemistry"}
        for number in (1, 2):
            sent = batch(70 + number, array_job_id=70, array_task_id=number, **other)
            assert opened.write(sent)
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


def asked(client: TestClient, method: str, address: str) -> tuple[int, str]:
    sent = {"user": "alice", "state": "open"} if method in ("POST", "PUT", "PATCH") else None
    answer = client.request(method, address, json=sent)
    return answer.status_code, answer.text


def statements(
    client: TestClient, method: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[str]]:
    # What a first request reads for all later ones is not counted.
    asked(client, method, address)
    with recorded(monkeypatch) as texts:
        status, _ = asked(client, method, address)
        return status, list(texts)


def run_routes(app: Any) -> list[tuple[str, str]]:
    found = {
        (method, re.sub(r"\{(kind|metric|name)\}", lambda match: PLACES[match[1]], path))
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
    }
    return sorted(found)


@pytest.mark.parametrize("viewer", ["alice", "carol"])
def test_a_hidden_run_costs_the_statements_of_an_unknown_one(
    clients: dict[str, TestClient], app: Any, viewer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, compared = clients[viewer], 0
    for method, path in run_routes(app):
        address = path.replace("{reference}", "alpha:{array}")
        if "{array}" in address:
            pair = (address.replace("{array}", "70"), address.replace("{array}", "98"))
        else:
            pair = tuple(re.sub(r"\{(run|job)\}", str(id), address) for id in (HIDDEN, UNKNOWN))
        hidden, unknown = (statements(client, method, each, monkeypatch) for each in pair)
        assert hidden == unknown, (method, address)
        compared += bool(hidden[1])
    assert compared > 20


def test_the_statements_are_recorded(
    clients: dict[str, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that may be seen costs more statements: otherwise the test above proves nothing."""
    seen = statements(clients["alice"], "GET", "/api/v1/jobs/12", monkeypatch)
    unknown = statements(clients["alice"], "GET", "/api/v1/jobs/99", monkeypatch)
    assert (seen[0], unknown[0]) == (200, 404)
    assert len(seen[1]) > len(unknown[1])
