"""Tokens of clusters: what they open, how they end, and a rotation that refuses nobody."""

import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from jobsight.cli.token import hand_out
from jobsight.config.settings import Settings
from jobsight.errors import StoreError
from jobsight.model import SECOND
from jobsight.server.app import create_app
from jobsight.server.auth import TokenCache, cluster_tokens
from jobsight.server.serve import BackgroundServer
from jobsight.store.store import Store
from jobsight.store.tokens import Tokens
from jobsight.transport import wire
from jobsight.transport.delivery import Answer, HttpTarget
from tests.server.auth.test_control import ROUTES
from tests.server.batches import batch
from tests.server.conftest import TOKEN
from tests.waiting import wait_until


@pytest.fixture
def tokens(store: Store) -> Tokens:
    return Tokens(store.database)


@pytest.fixture
def ring(store: Store) -> TokenCache:
    return TokenCache(store)


@pytest.fixture
def client(store: Store, ring: TokenCache) -> TestClient:
    app = create_app(store, TOKEN, delay=0, tokens=ring)
    return TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False)


def send(client: TestClient, token: str, **changes: object) -> tuple[int, str]:
    sent = batch(**changes)  # type: ignore[arg-type]
    answer = client.post(
        "/api/v1/batches",
        content=wire.encode(sent),
        headers={"Authorization": f"Bearer {token}"},
    )
    return answer.status_code, answer.json().get("detail", answer.json()["status"])


def test_a_token_sends_batches_of_its_cluster_and_nothing_else(
    client: TestClient, tokens: Tokens
) -> None:
    _, token = tokens.add("alpha", "nodes")
    assert send(client, token) == (200, "stored")
    for path in ROUTES:
        answer = client.get(path, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 403, path
        assert "1 of cluster alpha (nodes) permits sending batches only" in answer.text
    assert client.get(f"/?code={token}").status_code == 401
    assert client.post("/sign-in", data={"token": token}).status_code == 401


def test_a_batch_of_another_cluster_is_refused_and_both_are_named(
    client: TestClient, tokens: Tokens, store: Store
) -> None:
    _, token = tokens.add("beta")
    status, error = send(client, token)
    assert status == 403
    assert error.startswith("the token belongs to cluster 'beta', the batch to cluster 'alp")
    assert store.info().agents == store.info().runs == 0
    assert send(client, TOKEN) == (200, "stored")


def test_a_run_of_another_cluster_inside_of_a_batch_is_refused(
    client: TestClient, tokens: Tokens, store: Store
) -> None:
    _, token = tokens.add("alpha")
    status, error = send(client, token, cluster="beta")
    assert (status, error) == (422, "a batch of cluster alpha speaks for cluster 'beta'")
    assert store.info().agents == 0


def test_wrong_expired_and_revoked_are_said(client: TestClient, tokens: Tokens) -> None:
    assert send(client, "no-such-token") == (401, "the token is invalid")
    _, expired = tokens.add("alpha", "old", expires=1_700_000_000 * SECOND)
    assert send(client, expired) == (
        401,
        "the token 1 of cluster alpha (old) expired on 2023-11-14 22:13 UTC",
    )
    number, revoked = tokens.add("alpha")
    tokens.revoke(number)
    status, error = send(client, revoked)
    assert status == 401
    assert error.startswith("the token 2 of cluster alpha was revoked on 20")


def test_a_rotation_has_no_gap(
    client: TestClient, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, old = tokens.add("alpha", "nodes")
    assert send(client, old) == (200, "stored")
    before, new_number, new = tokens.rotate(number, grace=3600 * SECOND)
    assert (before.id, new_number) == (1, 2)
    # Both are good at once, in the server that knew only the first until now.
    assert send(client, new) == send(client, old) == (200, "stored")
    tokens.rotate(number, grace=0)
    monkeypatch.setattr(cluster_tokens, "REVOKED_WITHIN", 0)
    assert send(client, new) == (200, "stored")
    assert "expired" in send(client, old)[1]
    assert [token.label for token in tokens.list("alpha")] == ["nodes"] * 3
    assert tokens.list("beta") == []


def test_agents_send_on_through_a_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old token is revoked under agents that have it in memory and the new one on disk."""
    monkeypatch.setattr(cluster_tokens, "REVOKED_WITHIN", 0)
    settings = Settings()
    settings.store.location = str(tmp_path / "store.db")
    settings.server.port = 0
    files = [tmp_path / f"token-{number}" for number in range(3)]
    ended = threading.Event()
    answers: list[Answer] = []

    def agent(number: int) -> None:
        target = HttpTarget(server.url, files[number])
        spool, sequence = f"agent {number}", 0
        while not ended.is_set():
            sequence += 1
            sent = batch(number, spool=spool, sequence=sequence)
            answers.append(target.send(wire.encode(sent)))

    with Store.open(settings.store.location) as store, BackgroundServer(settings) as server:
        tokens = Tokens(store.database)
        number, token = tokens.add("alpha")
        for file in files:
            hand_out(token, file)
        threads = [threading.Thread(target=agent, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            old, number, token = tokens.rotate(number, grace=60 * SECOND)
            for file in files:
                hand_out(token, file)
            tokens.revoke(old.id)
            seen = len(answers)
            wait_until(lambda seen=seen: len(answers) > seen + 12)
        ended.set()
        for thread in threads:
            thread.join()
    assert [answer.reason for answer in answers if not answer.stored] == []


def test_a_revoked_token_is_refused_within_seconds(
    client: TestClient, tokens: Tokens, ring: TokenCache
) -> None:
    number, token = tokens.add("alpha")
    assert send(client, token) == (200, "stored")
    tokens.revoke(number)
    # What the server read a moment ago is still believed; then it reads again.
    assert send(client, token) == (200, "stored")
    ring._read_at -= cluster_tokens.REVOKED_WITHIN
    assert send(client, token)[0] == 401


def test_uses_are_written_together_and_not_with_each_batch(
    client: TestClient, tokens: Tokens, ring: TokenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    original = Tokens.record_use
    monkeypatch.setattr(
        Tokens, "record_use", lambda self, uses: (written.append(uses), original(self, uses))
    )
    made = [tokens.add("alpha")[1] for _ in range(2)]
    for token in made * 3:
        assert send(client, token) == (200, "stored")
    assert written == []
    ring._uses_written -= cluster_tokens._USES_INTERVAL
    assert send(client, made[0]) == (200, "stored")
    assert [sorted(uses) for uses in written] == [[1, 2]]
    assert all(token.used is not None for token in tokens.list())
    # A refused batch is no use.
    written.clear()
    assert send(client, made[0], cluster="beta")[0] == 422
    ring.write_uses()
    assert written == []


def test_uses_wait_for_a_store_that_cannot_be_written(
    tokens: Tokens, ring: TokenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens.add("alpha")

    def fail(*arguments: object) -> None:
        raise StoreError("the store is full")

    ring.record_use(tokens.list()[0])
    with monkeypatch.context() as patched:
        patched.setattr(Tokens, "record_use", fail)
        ring.write_uses()
    assert tokens.list()[0].used is None
    ring.write_uses()
    assert tokens.list()[0].used is not None


def test_a_store_that_does_not_answer_lets_nobody_in(
    client: TestClient, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise StoreError("the store is unreachable")

    _, token = tokens.add("alpha")
    monkeypatch.setattr(Tokens, "by_digest", fail)
    answer = client.post(
        "/api/v1/batches", content=b"x", headers={"Authorization": f"Bearer {token}"}
    )
    assert (answer.status_code, answer.json()["detail"]) == (503, "the store is unreachable")
    assert int(answer.headers["Retry-After"]) > 0
