"""The pages of arrays, scripts and comparisons, and what a page of a run says of its work."""

from __future__ import annotations

import csv
import io
from collections import Counter

import pytest
from starlette.testclient import TestClient

from jobsight.reports.subject import array_report
from jobsight.store.history import find_work, work_of_run
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from tests.web.document import Document
from tests.web.viewers import seen_by, user


def open_page(client: TestClient, address: str) -> Document:
    reply = client.get(address)
    assert reply.status_code == 200, reply.text
    assert len(reply.content) < 200_000
    return Document(reply.text)


@pytest.fixture(scope="module")
def array(site: Store) -> list[StoredRun]:
    """The runs of the largest array."""
    runs = [run for run in site.runs(limit=3000) if run.info.array_job_id is not None]
    counted = Counter((run.info.cluster, run.info.array_job_id) for run in runs)
    (key, count), *_ = counted.most_common(1)
    assert count > 5
    return [run for run in runs if (run.info.cluster, run.info.array_job_id) == key]


@pytest.fixture(scope="module")
def repeated(site: Store) -> tuple[str, list[StoredRun]]:
    """The key of the work with the most ended runs, and these."""
    ended = [run for run in site.runs(limit=3000) if run.info.end is not None]
    works = Counter(work_of_run(site.database, run.id) for run in ended)
    works.pop(None, None)
    (work_id, count), *_ = works.most_common(1)
    assert work_id is not None
    assert count > 3
    work = find_work(site.database, work_id)
    assert work is not None
    return work.key.hex(), site.runs(limit=3000, work_ids=[work_id])


def test_an_array_has_its_states_tasks_and_spread(
    visit: TestClient, site: Store, array: list[StoredRun]
) -> None:
    first = array[0].info
    document = open_page(visit, f"/arrays/{first.cluster}:{first.array_job_id}")
    report = array_report(site, first.array_job_id or 0, cluster=first.cluster)
    assert f"array of {report.states_of} tasks" in document.text
    for text in ("Tasks", "Efficiency and waiting", "Median", first.user or ""):
        assert text in document.text
    links = [each.get("href") for each in document.all("a")]
    drawn = [run for run in array if f"/jobs/{run.run}" in links]
    assert len(drawn) == len(array)
    for outlier in report.outliers:
        assert outlier.text in document.text


def test_the_page_of_a_task_leads_to_its_array(visit: TestClient, array: list[StoredRun]) -> None:
    first = array[0].info
    document = open_page(visit, f"/jobs/{array[0].run}")
    links = [each.get("href") for each in document.all("a")]
    assert f"/arrays/{first.cluster}:{first.array_job_id}" in links


def test_a_script_has_its_runs_right_size_and_trend(
    visit: TestClient, repeated: tuple[str, list[StoredRun]]
) -> None:
    key, runs = repeated
    document = open_page(visit, f"/scripts/{key}")
    assert f"{len(runs):,} runs of the same" in document.text
    for text in ("Right size", "Latest runs", "Compare the marked runs", key[:16]):
        assert text in document.text, text
    listed = [each.get("value") for each in document.all("input") if each.get("name") == "run"]
    assert listed == [str(run.run) for run in runs[:25]]


def test_the_page_of_a_run_has_others_of_the_same_work(
    visit: TestClient, repeated: tuple[str, list[StoredRun]]
) -> None:
    key, runs = repeated
    ended = next(run for run in runs if run.info.end is not None)
    document = open_page(visit, f"/jobs/{ended.run}")
    assert "Runs of the same work" in document.text
    links = [each.get("href") or "" for each in document.all("a")]
    assert f"/scripts/{key}" in links
    assert any(link.startswith("/compare?run=") for link in links)


def test_runs_side_by_side_with_their_differences(
    visit: TestClient, repeated: tuple[str, list[StoredRun]]
) -> None:
    _, runs = repeated
    chosen = [run for run in runs if run.cpu_time][:2]
    document = open_page(visit, "/compare?" + "&".join(f"run={run.run}" for run in chosen))
    assert "Compare 2 runs" in document.text
    for text in ("Requested", "Used", "CPU use", "Memory, peak"):
        assert text in document.text
    sources = [each.get("data-run") for each in document.all("span") if each.get("data-run")]
    assert sources == [f"/api/v1/jobs/{run.run}/series" for run in chosen]
    # The same user, another start.
    heads = [each for each in document.all("th") if each.get("scope") == "row"]
    assert sum("differs" in (each.get("class") or "") for each in heads) > 0
    same = open_page(visit, f"/compare?run={chosen[0].run}&run={chosen[0].run}&run={chosen[1].run}")
    assert "Compare 2 runs" in same.text


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("", "run: expected 2 to 8 runs"),
        ("?run=1", "run: expected 2 to 8 runs"),
        ("?" + "&".join(f"run={number}" for number in range(9)), "run: expected 2 to 8 runs"),
        ("?run=x&run=y", "run: "),
    ],
)
def test_a_comparison_of_nothing_is_refused(visit: TestClient, query: str, sentence: str) -> None:
    reply = visit.get(f"/compare{query}")
    assert reply.status_code == 422
    assert sentence.lower() in Document(reply.text).text.lower()


def test_others_see_no_array_script_comparison_or_file(
    visit: TestClient, array: list[StoredRun], repeated: tuple[str, list[StoredRun]]
) -> None:
    first = array[0].info
    key, runs = repeated
    addresses = (
        f"/arrays/{first.cluster}:{first.array_job_id}",
        f"/scripts/{key}",
        f"/compare?run={runs[0].run}&run={runs[1].run}",
        f"/jobs/{runs[0].run}/series.csv",
    )
    unknown = (
        f"/arrays/{first.cluster}:999999999",
        f"/scripts/{'ab' * 16}",
        f"/compare?run={first.cluster}:999999&run=2",
        "/jobs/999999999/series.csv",
    )
    with seen_by(user("nobody-of-these")):
        for address, other in zip(addresses, unknown, strict=True):
            reply, nothing = visit.get(address), visit.get(other)
            assert (reply.status_code, nothing.status_code) == (404, 404), address
        assert visit.get("/jobs.json").json() == {"jobs": []}
        assert "/jobs/" not in visit.get("/jobs").text.replace("/jobs/static", "")
    with seen_by(user(first.user or "")):
        assert visit.get(addresses[0]).status_code == 200


def test_the_time_series_as_csv(visit: TestClient, site: Store) -> None:
    run = next(run for run in site.runs(limit=300) if run.node_count > 1 and run.cpu_time)
    reply = visit.get(f"/jobs/{run.run}/series.csv")
    assert reply.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(reply.text)))
    assert {row["node"] for row in rows} == {node.node for node in site.nodes(run.id)}
    busy = [float(row["cpu.time"]) for row in rows if row["cpu.time"]]
    document = visit.get(f"/api/v1/jobs/{run.run}/series?metrics=cpu.time&points=10000").json()
    values = [value for node in document["nodes"] for value in node["metrics"]["cpu.time"]["mean"]]
    assert busy == [value for value in values if value is not None]


def test_the_first_page_of_a_user_has_the_own_jobs_only(visit: TestClient, site: Store) -> None:
    name = next(run.info.user for run in site.runs(limit=200, state="RUNNING") if run.info.user)
    with seen_by(user(name)):
        document = Document(visit.get("/").text)
    assert "Your jobs" in document.text
    running = site.runs(limit=1000, state="RUNNING", user=name)
    assert f"{len(running)} running" in document.text
    links = [each.get("href") or "" for each in document.all("a")]
    shown = [link for link in links if link.startswith("/jobs/")]
    own = {f"/jobs/{run.run}" for run in site.runs(limit=3000, user=name)}
    waiting = {link for link in shown if link.count(":") == 1}
    assert {*shown} - waiting <= own
    assert any(link in own for link in shown)


def test_a_run_links_the_pages_that_the_viewer_may_see(
    visit: TestClient, array: list[StoredRun]
) -> None:
    info, address = array[0].info, f"/jobs/{array[0].run}"

    def links() -> set[str | None]:
        return {each.get("href") for each in open_page(visit, address).all("a")}

    assert {f"/users/{info.user}", f"/accounts/{info.account}"} <= links()
    with seen_by(user(info.user or "")):
        own = links()
    assert f"/users/{info.user}" in own
    assert f"/accounts/{info.account}" not in own
