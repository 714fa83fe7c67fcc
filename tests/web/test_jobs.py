"""The list of runs, as the server renders it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from jobsight.access.passwords import hash_password
from jobsight.config.settings import AccessSettings
from jobsight.model import SECOND, Run
from jobsight.scheduler.records import JobRecord
from jobsight.server.app import create_app
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.chains import Dependency
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store
from jobsight.web.pages import jobs
from tests.store.sample import START, batch, info
from tests.web.conftest import TOKEN
from tests.web.document import Document
from tests.web.sample import HOSTILE


def page(client: TestClient, address: str = "/jobs") -> Document:
    answer = client.get(address)
    assert answer.status_code == 200
    return Document(answer.text)


def selected(document: Document) -> list[str | None]:
    return [each["value"] for each in document.all("option") if "selected" in each]


def linked(document: Document) -> list[str]:
    return [
        link["href"] or "" for link in document.all("a") if "run-id" in (link.get("class") or "")
    ]


def test_the_newest_come_first_with_their_figures(client: TestClient, runs: dict[str, Run]) -> None:
    document = page(client)
    assert linked(document)[0] == f"/jobs/{runs['train-model']}"
    assert len(linked(document)) == 50
    for text in ("59 runs", "62_3", "Ended: out of memory", "lammps-melt", "16.0 GiB of 16.0 GiB"):
        assert text in document.text
    times = document.all("time")
    assert times[0]["datetime"] == "2026-11-15T04:31:37Z"
    assert any(row.get("class") == "running" for row in document.all("tr"))


def test_pages_of_the_list_join_without_gap(client: TestClient) -> None:
    first = page(client)
    older = next(link["href"] for link in first.all("a") if link.get("rel") == "next")
    second = page(client, f"/jobs{older}")
    assert len(linked(first)) + len(linked(second)) == 59
    assert not set(linked(first)) & set(linked(second))
    assert "51 to 59 of 59" in second.text
    assert "First page" in second.text
    after_all = page(client, "/jobs?cursor=1-1")
    assert "This page of the list is empty" in after_all.text


# Fault 21: the page showed an empty list.
def test_an_unknown_state_is_refused_with_the_names(client: TestClient) -> None:
    reply = client.get("/jobs?state=FAILD")
    assert reply.status_code == 422
    assert "did you mean FAILED?" in Document(reply.text).text
    assert "OUT_OF_MEMORY" in Document(reply.text).text
    document = page(client, "/jobs?state=completed")
    assert "COMPLETED" in selected(document)
    assert linked(document) == linked(page(client, "/jobs?state=COMPLETED"))
    assert linked(page(client, "/jobs?state=+")) == linked(page(client))


def test_filters_are_kept_in_the_form_and_the_links(client: TestClient) -> None:
    document = page(client, "/jobs?search=sweep&user=ada&state=COMPLETED")
    assert "50 runs found" in document.text
    fields = {field.get("name"): field.get("value") for field in document.all("input")}
    assert (fields["search"], fields["user"], fields["account"]) == ("sweep", "ada", "")
    assert "COMPLETED" in selected(document)
    assert linked(page(client, "/jobs?state=OUT_OF_MEMORY")) != []


def test_no_match_and_no_run_at_all_say_what_to_do(client: TestClient, tmp_path: Path) -> None:
    assert "No job matches." in page(client, "/jobs?search=nothing-has-this-name").text
    with Store.open(tmp_path / "empty.db") as empty:
        other = TestClient(create_app(empty, TOKEN, delay=0), base_url="http://127.0.0.1")
        other.headers["Authorization"] = f"Bearer {TOKEN}"
        assert "jobsight run -- COMMAND" in page(other).text


@pytest.mark.parametrize("field", ["search", "user", "state"])
def test_what_is_typed_into_the_filter_stays_text(client: TestClient, field: str) -> None:
    answer = client.get("/jobs", params={field: HOSTILE})
    assert answer.status_code == (422 if field == "state" else 200)
    assert "<script>alert" not in answer.text
    Document(answer.text)
    if field != "state":
        fields = {
            each.get("name"): each.get("value") for each in Document(answer.text).all("input")
        }
        assert fields[field] == HOSTILE


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("offset=5", "there is no filter 'offset'"),
        ("sort=colour", "sort: 'colour' is no column to sort by; expected one of start, job_id"),
        ("columns=run,colour", "columns: 'colour' is none of run, state"),
        ("since=yesterday", "since: 'yesterday' is no time; expected 2026-11-15"),
        ("cpu_share_below=much", "cpu_share_below: 'much' is no share; expected a number"),
        ("cpu_share_above=nan", "cpu_share_above: 'nan' is no share"),
        ("gpu=two", "gpu: expected any or unused"),
        ("array=7", "array: expected cluster:id"),
        ("group=2", "group: expected 0 or 1"),
        ("cursor=x", "cursor: expected a cursor as the page before gave it"),
        ("sort=user&cursor=5-7.NQ", "cursor: the cursor belongs to a list with another order"),
        ("user=" + "x" * 201, "user: expected at most 200 characters"),
    ],
)
def test_wrong_parameters_are_told_in_a_page(client: TestClient, query: str, sentence: str) -> None:
    answer = client.get(f"/jobs?{query}")
    assert answer.status_code == 422
    assert sentence.lower() in Document(answer.text).text.lower()


def test_a_form_with_empty_fields_leads_to_an_address_without_them(client: TestClient) -> None:
    answer = client.get("/jobs?search=&user=ada&state=&columns=name", follow_redirects=False)
    assert answer.status_code == 307
    assert answer.headers["location"] == "/jobs?user=ada&columns=run%2Cname"
    assert len(linked(page(client, "/jobs?search=&user=ada&state="))) == 50


def test_every_column_sorts_in_both_directions(client: TestClient) -> None:
    document = page(client)
    sorts = [link["href"] or "" for link in document.all("a") if "sort=" in (link["href"] or "")]
    assert len(sorts) >= 9
    for address in sorts:
        first = page(client, f"/jobs{address}")
        (column,) = [each for each in first.all("th") if "aria-sort" in each]
        name = address.removeprefix("?sort=").removeprefix("-")
        descending = address.startswith("?sort=-")
        assert column["aria-sort"] == ("descending" if descending else "ascending")
        # The link of the column now leads to the opposite order.
        opposite = f"?sort={'' if descending else '-'}{name}"
        assert opposite in [link["href"] for link in first.all("a")] or name == "start"
    assert linked(page(client, "/jobs?sort=-elapsed")) != linked(document)


def test_columns_are_chosen_in_the_address(client: TestClient) -> None:
    document = page(client, "/jobs?columns=name,partition,cpu_time")
    heads = [each for each in document.all("th") if each.get("scope") == "col"]
    assert len(heads) == 4
    for text in ("Partition", "CPU time"):
        assert text in document.text
    checked = [each["value"] for each in document.all("input") if "checked" in each]
    assert checked == ["name", "partition", "cpu_time"]
    # The links of the columns keep the choice.
    assert all(
        "columns=" in (link["href"] or "")
        for link in document.all("a")
        if "sort=" in (link["href"] or "")
    )


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """An array of 60 tasks between runs of their own, and a heterogeneous job."""
    with Store.open(tmp_path_factory.mktemp("arrays") / "store.db") as store:
        content = [info(10, name="before", user="ada", state="COMPLETED", end=START + SECOND)]
        for task in range(60):
            start = START + (task + 5) * SECOND
            content.append(
                info(
                    100 + task,
                    start,
                    name="sweep",
                    user="ada",
                    array_job_id=100,
                    array_task_id=task,
                    cpus=2,
                    state="FAILED" if task % 20 == 7 else "COMPLETED",
                    end=start + (task + 1) * SECOND,
                )
            )
        for part in range(2):
            start = START + 90 * SECOND
            content.append(info(200 + part, start, name="coupled", het_job_id=200, het_offset=part))
        content.append(info(300, START + 100 * SECOND, name="after", user="bob"))
        for step in range(3):
            start = START - (90 - step) * SECOND
            times = {"start": start, "end": start + SECOND}
            content.append(info(400 + step, name="step", user="ada", state="COMPLETED", **times))
        store.write(batch(*content))
        store.record_dependencies(
            [Dependency("c1", 400 + step, "ada", START, (399 + step,)) for step in (1, 2, 3, 4)],
            now=START,
        )
        wanted = {"submit": START, "time_limit": 5400 * SECOND, "memory": 3 * 2**30}
        waits = [
            JobRecord(
                info=info(job_id, None, name="step", user="ada", state="PENDING", **wanted),
                expected_start=START + 7200 * SECOND,
            )
            for job_id in (403, 404, 405)
        ]
        Snapshot(store.database, "c1").replace(
            "pending", [(str(each.info.job_id), each) for each in waits]
        )
        made = TestClient(create_app(store, TOKEN, delay=0), base_url="http://127.0.0.1:8080")
        made.headers["Authorization"] = f"Bearer {TOKEN}"
        yield made


def test_an_array_is_one_row_that_opens(arrays: TestClient) -> None:
    closed = page(arrays)
    first, *groups, last, _ = linked(closed)
    assert groups == ["/arrays/c1:200", "/arrays/c1:100"]
    assert first.startswith("/jobs/c1:300:")
    assert last.startswith("/jobs/c1:10:")
    for text in ("60 tasks", "2 parts", "Completed 57", "Failed 3", "1.00 s to 00:01:00"):
        assert text in closed.text, text
    opened = page(arrays, "/jobs?open=c1:100")
    assert len(linked(opened)) == 5 + 25
    assert "All 60 as a list" in opened.text
    every = page(arrays, "/jobs?array=c1:100")
    assert len(linked(every)) == 50
    assert "60 runs found" in every.text
    assert len(linked(page(arrays, "/jobs?group=0"))) == 50
    failed = page(arrays, "/jobs?state=FAILED&open=c1:100")
    assert [text.partition(":")[0] for text in linked(failed)] == ["/arrays/c1"] + ["/jobs/c1"] * 3


def test_a_chain_is_one_row_that_opens(arrays: TestClient) -> None:
    closed = page(arrays)
    assert linked(closed)[-1] == "?chain=c1%3A401"
    for text in ("3 in a chain", "Completed 3"):
        assert text in closed.text, text
    opened = page(arrays, "/jobs?open=c1:401")
    assert [each.partition(":2")[0] for each in linked(opened)[-3:]] == [
        *("/jobs/c1:402", "/jobs/c1:401", "/jobs/c1:400")
    ]
    assert "3 runs found" in page(arrays, "/jobs?chain=c1:401").text
    run = page(arrays, linked(opened)[-1])
    assert "/jobs?chain=c1%3A401" in [each.get("href") for each in run.all("a")]
    reply = arrays.get("/api/v1/jobs?chain=401").json()
    assert [(row["job_id"], row["chain_job_id"]) for row in reply["jobs"]] == [
        *((402, 401), (401, 401), (400, 401))
    ]
    assert arrays.get("/jobs?chain=401").status_code == 422


def test_a_chain_that_waits_is_one_row(arrays: TestClient) -> None:
    closed = page(arrays, "/jobs?state=PENDING")
    assert len(linked(closed)) == 2
    assert "2 in a chain" in closed.text
    assert "3 runs found" in closed.text
    opened = page(arrays, "/jobs?state=PENDING&open=c1:401")
    assert linked(opened)[2:] == ["/jobs/c1:404", "/jobs/c1:403"]
    chain = page(arrays, "/jobs?state=PENDING&chain=c1:401")
    assert linked(chain) == ["/jobs/c1:404", "/jobs/c1:403"]


def test_jobs_that_wait_have_columns_of_their_own(arrays: TestClient) -> None:
    waiting = page(arrays, "/jobs?state=PENDING")
    table = waiting.text.partition("Times are in UTC.")[2]
    for text in ("Submitted (UTC)", "Expected start (UTC)", "Memory requested", "01:30:00", "3.00"):
        assert text in table
    assert "CPU use" not in table
    times = [each["datetime"] for each in waiting.all("time")]
    assert times == ["2026-09-21T14:13:20Z", "2026-09-21T16:13:20Z"]
    chosen = page(arrays, "/jobs?state=PENDING&columns=cpu,start")
    assert "Submitted (UTC)" not in chosen.text.partition("Times are in UTC.")[2]
    (row, *_) = arrays.get("/api/v1/jobs?state=PENDING").json()["jobs"]
    assert row["time_requested_seconds"] == 5400
    assert row["expected_start"] == "2026-09-21T16:13:20.000000000Z"


# The tasks of an array are on both sides of a page; it must not appear on the second again.
@pytest.mark.parametrize("sort", ["", "start", "-elapsed", "elapsed", "user", "-cpu_share"])
def test_an_array_is_on_one_page_only(
    arrays: TestClient, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    monkeypatch.setattr(jobs, "ROWS_PER_PAGE", 1)
    address: str | None = f"?sort={sort}" if sort else ""
    found: list[str] = []
    while address is not None:
        document = page(arrays, f"/jobs{address}")
        found += linked(document)
        following = [link["href"] for link in document.all("a") if link.get("rel") == "next"]
        address = following[0] if following else None
    assert len(found) == len(set(found)) == 5


def test_the_filtered_list_as_csv_and_json(arrays: TestClient) -> None:
    answer = arrays.get("/jobs.csv?state=FAILED&sort=elapsed")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["display_id"] for row in rows] == ["100_7", "100_27", "100_47"]
    assert float(rows[0]["elapsed_seconds"]) == 8.0
    document = arrays.get("/jobs.json?state=FAILED&sort=-elapsed").json()
    assert [job["display_id"] for job in document["jobs"]] == ["100_47", "100_27", "100_7"]
    assert arrays.get("/jobs.json?user=nobody").json() == {"jobs": []}
    # Runs, without the jobs that wait.
    assert len(arrays.get("/jobs.json?group=0").json()["jobs"]) == 64 + 3
    assert arrays.get("/jobs.csv?sort=colour").status_code == 422


def test_the_first_page_shows_what_runs_and_the_latest_runs(
    arrays: TestClient, client: TestClient, tmp_path: Path
) -> None:
    document = page(arrays, "/")
    for text in ("All jobs", "3 running, 3 waiting", "after", "coupled", "Latest runs", "sweep"):
        assert text in document.text, text
    assert "train-model" in page(client, "/").text
    with Store.open(tmp_path / "empty.db") as empty:
        other = TestClient(create_app(empty, TOKEN, delay=0), base_url="http://127.0.0.1")
        other.headers["Authorization"] = f"Bearer {TOKEN}"
        assert "jobsight run -- COMMAND" in page(other, "/").text


def test_the_columns_of_a_user_are_remembered(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        store.write(batch(info(10, name="own", user="ada", qos="long")))
        password = "a password of the tests"
        UserAccounts(store.database).add("ada", "user", password_hash=hash_password(password))
        browser = TestClient(
            create_app(store, TOKEN, delay=0, access=AccessSettings()),
            base_url="http://127.0.0.1:8080",
        )
        browser.post("/sign-in", data={"username": "ada", "password": password})
        chosen = page(browser, "/jobs?columns=name,qos")
        fields = {each.get("name"): each.get("value") for each in chosen.all("input")}
        assert "Remember these columns" in chosen.text
        given = {"csrf": fields["csrf"], "columns": "run,name,qos"}
        refused = browser.post("/jobs", data={**given, "columns": "run,colour"})
        assert refused.status_code == 422
        assert browser.post("/jobs", data={**given, "csrf": "guessed"}).status_code == 403
        assert browser.post("/jobs", data=given).status_code == 200
        later = page(browser)
        assert len([each for each in later.all("th") if each.get("scope") == "col"]) == 3
        assert "long" in later.text
        assert "Remember" not in later.text
        # A choice in the address goes before it.
        assert "Start (UTC)" in page(browser, "/jobs?columns=start").text
