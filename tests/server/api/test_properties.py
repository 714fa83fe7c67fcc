"""Properties that users add to their own jobs."""

from collections.abc import Iterator

import msgspec
import pytest
from starlette.testclient import TestClient

from jobsight.store.accounts.privacy import erase_user, export_user
from jobsight.store.properties import MAX_PROPERTIES, MAX_SIZE, is_web_address
from jobsight.store.store import Store
from tests.server.batches import START, batch
from tests.server.site import ALICE, BOB, COORDINATOR, client_of

ADDRESS = "/api/v1/jobs/12/properties"


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    with Store.open(location) as opened:
        assert opened.write(batch(12))
        assert opened.write(batch(13, user="bob"))
        yield opened


def test_properties_are_merged_and_removed(store: Store) -> None:
    client = client_of(store, ALICE)
    assert client.get(ADDRESS).json()["properties"] == {}
    first = client.patch(ADDRESS, json={"rate": 0.1, "tags": ["a", "b"], "note": "first"})
    assert first.json()["properties"] == {"rate": 0.1, "tags": ["a", "b"], "note": "first"}
    merged = client.patch(ADDRESS, json={"note": "second", "tags": None}).json()
    assert merged["properties"] == {"rate": 0.1, "note": "second"}
    assert client.put(f"{ADDRESS}/depth", json=3).json()["properties"]["depth"] == 3
    left = client.delete(f"{ADDRESS}/rate").json()["properties"]
    assert left == {"note": "second", "depth": 3}
    assert client.delete(f"{ADDRESS}/unknown").json()["properties"] == left
    assert (merged["cluster"], merged["job_id"], merged["user"]) == ("alpha", 12, "alice")


def test_jobs_are_found_by_a_property(store: Store) -> None:
    client_of(store, ALICE).patch(ADDRESS, json={"set": "cifar", "epochs": 90, "on": True})
    client_of(store, BOB).patch("/api/v1/jobs/13/properties", json={"set": "mnist"})
    client = client_of(store)
    for wanted, ids in (
        ("set", {12, 13}),
        ("set:cifar", {12}),
        ("set:other", set()),
        ("epochs:90", {12}),
        ("on:true", {12}),
        ("nobody-has-it", set()),
        ("set&user=bob", {13}),
        ("set&sort=user&account=physics", {12, 13}),
    ):
        rows = client.get(f"/api/v1/jobs?property={wanted}").json()["jobs"]
        assert {row["job_id"] for row in rows} == ids
    assert client_of(store, BOB).get("/api/v1/jobs?property=set:cifar").json()["total"] == 0


def test_only_the_own_jobs_and_only_with_the_scope(store: Store) -> None:
    assert client_of(store, BOB).patch(ADDRESS, json={"a": 1}).status_code == 404
    seen = client_of(store, COORDINATOR)
    assert seen.get(ADDRESS).status_code == 200
    assert "scope write" in seen.patch(ADDRESS, json={"a": 1}).json()["detail"]
    writer = msgspec.structs.replace(COORDINATOR, may_write=True)
    answer = client_of(store, writer).put(f"{ADDRESS}/a", json=1)
    assert (answer.status_code, "only the user" in answer.json()["detail"]) == (403, True)
    reader = msgspec.structs.replace(ALICE, may_write=False)
    assert client_of(store, reader).delete(f"{ADDRESS}/a").status_code == 403
    # The administrator may.
    assert client_of(store).patch(ADDRESS, json={"a": 1}).status_code == 200


def test_the_properties_of_a_user_are_exported_and_erased(store: Store) -> None:
    client_of(store, ALICE).patch(ADDRESS, json={"dataset": "cifar"})
    client_of(store, BOB).patch("/api/v1/jobs/13/properties", json={"dataset": "mnist"})
    (record,) = (
        row for row in export_user(store.database, "alice") if row["table"] == "properties"
    )
    assert (record["job_id"], record["value"]) == (12, '"cifar"')
    erase_user(store.database, "alice")
    assert client_of(store).get(ADDRESS).json()["properties"] == {}
    kept = client_of(store).get("/api/v1/jobs/13/properties").json()["properties"]
    assert kept == {"dataset": "mnist"}
    with store.database.query() as transaction:
        (count,) = transaction.execute("SELECT count(*) FROM job_properties").fetchone()
    assert count == 1


def test_limits(store: Store) -> None:
    client = client_of(store, ALICE)
    assert client.patch(ADDRESS, json={"a": "x" * (MAX_SIZE // 2)}).status_code == 200
    refused = client.patch(ADDRESS, json={"b": "x" * (MAX_SIZE // 2)})
    assert refused.status_code == 413
    assert f"at most {MAX_SIZE}" in refused.json()["detail"]
    assert list(client.get(ADDRESS).json()["properties"]) == ["a"]
    assert client.put(f"{ADDRESS}/c", json="x" * (5 * 2**20)).status_code == 413
    many = {f"p{number}": 1 for number in range(MAX_PROPERTIES)}
    assert client.patch(ADDRESS, json=many).status_code == 413
    # Another job has its own limits.
    assert client_of(store, BOB).patch("/api/v1/jobs/13/properties", json=many).status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"{", b"[" * 100_000, b'{"": 1}', b'{"a\\nb": 1}', b'"\xff"']
)
def test_what_is_no_property_is_refused(store: Store, body: bytes) -> None:
    client = client_of(store, ALICE)
    assert client.patch(ADDRESS, content=body).status_code == 422
    assert client.get(ADDRESS).json()["properties"] == {}


def test_a_requeued_job_keeps_them_and_another_user_gets_none(store: Store) -> None:
    client_of(store, ALICE).patch(ADDRESS, json={"kept": True})
    later = 3600 * 10**9
    store.write(batch(12, sequence=2, start=START + later, end=START + 2 * later))
    assert client_of(store, ALICE).get(ADDRESS).json()["properties"] == {"kept": True}
    store.write(batch(12, user="bob", start=START + 5 * later, end=START + 6 * later))
    assert client_of(store, BOB).get(ADDRESS).json()["properties"] == {}


def test_links_are_shown_on_the_page_of_the_run(store: Store) -> None:
    client = client_of(store, ALICE)
    before = client.get("/jobs/12")
    client.patch(
        ADDRESS,
        json={
            "wandb_hyperlink": "https://tracking.example.org/run?a=1&b=2",
            "evil": "javascript:alert(1)",
            "<i>": "<b>bold</b>",
        },
    )
    reply = client.get(ADDRESS).json()
    assert reply["links"] == [
        {"name": "wandb_hyperlink", "url": "https://tracking.example.org/run?a=1&b=2"}
    ]
    page = client.get("/jobs/12", headers={"If-None-Match": before.headers["ETag"]})
    assert page.status_code == 200
    assert 'href="https://tracking.example.org/run?a=1&amp;b=2"' in page.text
    assert 'rel="noopener noreferrer nofollow"' in page.text
    assert 'href="javascript' not in page.text
    assert "<b>bold" not in page.text
    assert "&lt;b&gt;bold" in page.text
    report = client.get("/api/v1/jobs/12").json()
    assert report["properties"] == {"<i>": "<b>bold</b>", "evil": "javascript:alert(1)"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://example.org/a", True),
        ("http://example.org:8080/?q=1#x", True),
        ("HTTPS://example.org", True),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("https://user:word@example.org/", False),
        ("https:///path", False),
        ("https://[::1", False),
        ("https://example.org/a b", False),
        ("https://example.org/\u202e", False),
        ("//example.org", False),
        ("", False),
    ],
)
def test_what_a_page_may_link_to(text: str, expected: bool) -> None:
    assert is_web_address(text) is expected


def test_a_job_that_is_not_there(store: Store) -> None:
    client: TestClient = client_of(store)
    assert client.get("/api/v1/jobs/99/properties").status_code == 404
    assert client.patch("/api/v1/jobs/99/properties", json={}).status_code == 404
