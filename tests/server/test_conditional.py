"""Requests with the tag of an earlier reply: 304 if nothing has changed, else the whole reply."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from jobsight.model import SECOND
from jobsight.server.app import create_app
from jobsight.server.conditional import CLOCK_STEP
from jobsight.software.naming import adopt_rules
from jobsight.store import database as databases
from jobsight.store.read import queries
from jobsight.store.store import Store
from tests.server.conftest import TOKEN
from tests.software.rule_sets import JOINED
from tests.store.findings.sample import add_findings, work
from tests.store.sample import START, batch, find, info, part, series, sighting, totals, use
from tests.store.sums import sum_up_everything


class Clock:
    def __init__(self) -> None:
        self.now = START + 100 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(location: str) -> Iterator[Store]:
    """Job 1 runs, job 2 has ended."""
    with Store.open(location) as store:
        own = {"user": "anna", "account": "astro", "cpus": 2}
        uses = [use(b"/opt/a", 5 * SECOND)]
        news = part(sighting(1), series=series([0, 1]), totals=totals(1, 5), executables=uses)
        store.write(batch(info(1, state="RUNNING", **own), news, sequence=1))
        ended = info(2, end=START + 60 * SECOND, state="COMPLETED", **own)
        report = part(sighting(2), series=series([0, 1]), totals=totals(1, 5), final=True)
        store.write(batch(ended, report, sequence=2))
        sum_up_everything(store)
        yield store


@pytest.fixture
def app(opened: Store, clock: Clock) -> TestClient:
    made = create_app(opened, TOKEN, delay=0, clock=clock)
    client = TestClient(made, base_url="http://127.0.0.1:8080", follow_redirects=False)
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    return client


LISTS = ("/", "/jobs", "/jobs?search=x", "/api/v1/jobs", "/api/v1/jobs?user=anna")
RUNNING = ("/jobs/1", "/api/v1/jobs/1")
ENDED = ("/jobs/2", "/api/v1/jobs/2")
SERIES = ("/api/v1/jobs/1/series", "/api/v1/jobs/1/series?points=5")
USAGE = ("/api/v1/usage", "/api/v1/usage?by=user&every=month")
ALL = (*LISTS, *RUNNING, *ENDED, *SERIES, *USAGE, "/api/v1/software")


def tags(app: TestClient) -> dict[str, str]:
    found = {}
    for path in ALL:
        reply = app.get(path)
        assert reply.status_code == 200, path
        found[path] = reply.headers["ETag"]
    return found


def changed(app: TestClient, known: dict[str, str]) -> set[str]:
    """The paths whose replies are sent again; of all others, a 304 without content."""
    result = set()
    for path, tag in known.items():
        reply = app.get(path, headers={"If-None-Match": tag})
        assert reply.headers["Cache-Control"] == "no-store"
        if reply.status_code == 200:
            assert reply.headers["ETag"] != tag
            result.add(path)
        else:
            assert (reply.status_code, reply.content) == (304, b"")
            assert reply.headers["ETag"] == tag
    return result


def test_what_has_not_changed_is_not_sent_again(app: TestClient) -> None:
    known = tags(app)
    assert len(set(known.values())) == len(known)
    assert changed(app, known) == set()


def test_nothing_is_read_for_a_list_that_has_not_changed(
    app: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {path: tag for path, tag in tags(app).items() if path in LISTS}

    def fail(*arguments: object) -> None:
        raise AssertionError("a list was read")

    for name in ("list_runs", "count_runs", "Found"):
        monkeypatch.setattr(queries, name, fail)
    assert changed(app, known) == set()


def test_a_batch_changes_its_run_and_the_lists(app: TestClient, opened: Store) -> None:
    known = tags(app)
    opened.write(batch(part(sighting(1), series=series([2]), totals=totals(2, 9)), sequence=3))
    # The run waits to be summed up, which the reply says.
    assert changed(app, known) == {*LISTS, *RUNNING, *SERIES, *USAGE, "/api/v1/software"}
    known = tags(app)
    sum_up_everything(opened)
    assert changed(app, known) >= {*LISTS, *USAGE}
    assert changed(app, {path: known[path] for path in ENDED}) == set()


def test_each_kind_of_change_of_a_run_is_seen(app: TestClient, opened: Store) -> None:
    changes = (
        lambda: opened.write(batch(part(sighting(2), executables=[use(b"/b", 1)]), sequence=4)),
        lambda: opened.record_jobs([info(2, state="FAILED", exit_code=1)]),
        lambda: opened.write(batch(part(sighting(2, "n2"), totals=totals(1, 7)), sequence=5)),
    )
    for change in changes:
        known = {path: tag for path, tag in tags(app).items() if path in ENDED}
        before = app.get("/api/v1/jobs/2").content
        change()
        assert changed(app, known) == {*ENDED}
        assert app.get("/api/v1/jobs/2").content != before


def test_a_run_that_is_judged_or_named_is_sent_again(app: TestClient, opened: Store) -> None:
    """What would have fitted and the software of a run are known later than the run."""

    def judge() -> None:
        add_findings(opened, find(opened, "2"), work=work())

    def rename() -> None:
        adopt_rules(opened.database, JOINED)

    for change in (judge, rename):
        known = {path: tag for path, tag in tags(app).items() if path in ENDED}
        change()
        assert changed(app, known) == {*ENDED}


def test_another_process_changes_the_lists(app: TestClient, location: str) -> None:
    known = tags(app)
    with Store.open(location) as other:
        other.record_jobs([info(9, state="RUNNING", user="anna")])
    assert changed(app, known) >= {*LISTS}
    assert '"job_id":9' in app.get("/api/v1/jobs").text.replace(" ", "")


def test_a_bare_id_is_another_run_after_a_requeue(app: TestClient, opened: Store) -> None:
    known = {path: tag for path, tag in tags(app).items() if path in ENDED}
    opened.record_jobs([info(2, START + 3600 * SECOND, state="RUNNING", user="anna")])
    assert changed(app, known) == {*ENDED}


def test_elapsed_times_are_computed_again_after_some_seconds(app: TestClient, clock: Clock) -> None:
    known = tags(app)
    clock.now += CLOCK_STEP
    assert changed(app, known) == {*LISTS, *RUNNING}


def test_a_tag_is_that_of_the_credentials(app: TestClient, opened: Store) -> None:
    """Whoever may see something else gets it, whatever tag they send."""
    known = tags(app)
    other = TestClient(app.app, base_url="http://127.0.0.1:8080", follow_redirects=False)
    for path, tag in known.items():
        reply = other.get(path, headers={"If-None-Match": tag})
        assert reply.status_code == 401
        assert "ETag" not in reply.headers
    assert other.post("/sign-in", data={"token": TOKEN}).status_code == 303
    assert changed(other, known) == {*ALL}
    assert changed(other, tags(other)) == set()


def test_several_tags_and_none(app: TestClient) -> None:
    tag = app.get("/").headers["ETag"]
    assert tag.startswith('W/"')
    for given in (f'"other", {tag}', tag.removeprefix("W/"), f'W/"x",{tag},"y"'):
        assert app.get("/", headers={"If-None-Match": given}).status_code == 304
    for given in ("", "*", '"other"', tag[:-2], tag.upper(), "W/" + "x" * 5000):
        assert app.get("/", headers={"If-None-Match": given}).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/jobs/77", 404), ("/jobs/nothing", 404), ("/api/v1/jobs/77/series", 404),
        ("/api/v1/jobs?state=FOO", 422), ("/jobs?state=FOO", 422), ("/api/v1/usage?by=x", 422),
    ],
)  # fmt: skip
def test_errors_have_no_tag(app: TestClient, path: str, status: int) -> None:
    reply = app.get(path)
    assert reply.status_code == status
    assert "ETag" not in reply.headers


def test_a_store_that_cannot_be_read_is_reported(
    app: TestClient, opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = app.get("/").headers["ETag"]

    def fail(*arguments: object) -> None:
        raise databases.StoreError("the store is unreachable")

    monkeypatch.setattr(opened.database, "revision", fail)
    monkeypatch.setattr(opened.database, "query", fail)
    reply = app.get("/", headers={"If-None-Match": tag})
    assert reply.status_code == 503
