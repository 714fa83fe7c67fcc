"""The pages of software, programs, findings, operations and help."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from jobsight.findings.service import FindingsService
from jobsight.findings.withheld import withheld_kinds
from jobsight.metrics import METRICS
from jobsight.store.dead_letters import mark, resolve
from jobsight.store.findings.read import FindingFilter, list_findings, list_kinds
from jobsight.store.findings.write import set_reply
from jobsight.store.rollups.usage import Question, usage
from jobsight.store.store import Store
from jobsight.web.pages.help import TOPICS
from jobsight.web.pages.interval import Interval
from tests.web.conftest import SITE_NOW
from tests.web.document import Document
from tests.web.viewers import seen_by, user

MONTH = Interval.of(30, SITE_NOW)


def open_page(client: TestClient, address: str) -> Document:
    reply = client.get(address)
    assert reply.status_code == 200, reply.text
    return Document(reply.text)


def links(document: Document, start: str) -> list[str]:
    return [
        href for each in document.all("a") if (href := each.get("href") or "").startswith(start)
    ]


@pytest.fixture(scope="module")
def names(site: Store) -> dict[str, int]:
    """The software of the month, with the number of users."""
    question = Question(by=("software",), since=MONTH.since, until=MONTH.until)
    with site.database.read() as connection:
        return {row.software: row.users for row in usage(connection, question) if row.software}


def test_software_is_listed_with_its_use(visit: TestClient, names: dict[str, int]) -> None:
    document = open_page(visit, "/software")
    assert {*links(document, "/software/")} == {f"/software/{name}" for name in names}
    for sort in ("jobs", "users", "gpu_hours", "share"):
        assert len(links(open_page(visit, f"/software?sort={sort}"), "/software/")) == len(names)
    [found] = links(open_page(visit, "/software?search=GROMA"), "/software/")
    assert found == "/software/gromacs"


def test_a_software_has_versions_users_and_programs(visit: TestClient) -> None:
    document = open_page(visit, "/software/gromacs?days=90")
    for text in ("Versions", "Clusters and partitions", "Users", "Programs", "Use over time"):
        assert text in document.text
    assert links(document, "/users/")
    [program, *_] = links(document, "/programs?path=")
    shown = open_page(visit, program + "&days=90")
    assert "gromacs" in links(shown, "/software/")[0]
    assert links(shown, "/jobs/")
    assert visit.get("/software/no-such-software").status_code == 404
    assert visit.get("/programs?path=/no/such/program").status_code == 404


def test_users_see_counts_in_place_of_other_users(
    visit: TestClient, site: Store, names: dict[str, int]
) -> None:
    few = [name for name, users in names.items() if users < 5]
    many = [name for name, users in names.items() if users >= 5]
    assert few
    assert many
    with seen_by(user("stranger")):
        assert {*links(open_page(visit, "/software"), "/software/")} == {
            f"/software/{name}" for name in many
        }
        # One of few users is not found, as one that does not exist.
        hidden, unknown = visit.get(f"/software/{few[0]}"), visit.get("/software/none")
        assert hidden.status_code == unknown.status_code == 404
        assert hidden.text.replace(few[0], "X") == unknown.text.replace("none", "X")
        document = open_page(visit, f"/software/{many[0]}")
        assert links(document, "/users/") == []
        assert "Programs" not in document.words
        assert "Undetermined" not in open_page(visit, "/programs").words


def test_findings_for_staff(visit: TestClient, site: Store) -> None:
    [worst] = list_findings(site.database, FindingFilter(since=MONTH.since), 1)
    finding = worst.finding
    set_reply(site.database, finding.run_id, finding.kind, "not helpful", finding.user, SITE_NOW)
    try:
        document = open_page(visit, "/findings")
    finally:
        set_reply(site.database, finding.run_id, finding.kind, "open", finding.user, SITE_NOW)
    for text in ("By kind", "Worst by cost", "Did it help?", "Withheld", "Not fired in 30 days"):
        assert text in document.text
    assert "Reply of When What was found" in document.text
    rules = FindingsService(site).judge().rules  # type: ignore[attr-defined]
    linked = {href.rpartition("/")[2] for href in links(document, "/findings/")}
    # Every rule is named once at least: by its findings, or as one that did not fire.
    assert rules.keys() <= linked


@pytest.mark.parametrize("days", [7, 365])
def test_rules_that_did_not_fire_in_30_days_are_listed(
    visit: TestClient, site: Store, days: int
) -> None:
    month, ever = list_kinds(site.database, MONTH.since), list_kinds(site.database, 0)
    rules = FindingsService(site).judge().rules  # type: ignore[attr-defined]
    page = visit.get(f"/findings?days={days}").text
    table = Document(page[page.index('<table class="stack" id="quiet-rules"') :].split("</div>")[0])
    listed = [href.rpartition("/")[2] for href in links(table, "/findings/")]
    assert set(listed) == rules.keys() - month.keys()
    assert table.words.count("never") == len(rules.keys() - ever.keys()) > 0
    # Those that never fired are first.
    assert not ever.keys() & set(listed[: table.words.count("never")])
    with seen_by(user("stranger")):
        assert "quiet-rules" not in visit.get("/findings").text


def test_withheld_rules_have_a_reason(site: Store) -> None:
    kinds = withheld_kinds(site, FindingsService(site).judge(), site.runs(limit=50))
    assert kinds
    assert [each.runs for each in kinds] == sorted((each.runs for each in kinds), reverse=True)
    assert all(each.reason and 0 < each.of <= each.runs <= 50 for each in kinds)


def test_users_see_their_own_findings(visit: TestClient, site: Store) -> None:
    filter = FindingFilter(since=MONTH.since, audience="user")
    owner = list_findings(site.database, filter, 1)[0].finding.user
    own = list_findings(site.database, filter._replace(user=owner), 200)
    with seen_by(user(owner)):
        document = open_page(visit, "/findings")
        assert f"{min(len(own), 100)} open for your jobs" in document.text
        assert "Worst by cost" not in document.text
    with seen_by(user("stranger")):
        assert "No finding is open for your jobs" in open_page(visit, "/findings").text


def test_operations_have_every_part(visit: TestClient, site: Store) -> None:
    with site.database.write() as transaction:
        mark(transaction, "rollup", "1", "north", "the <reason>", SITE_NOW)
    try:
        document = open_page(visit, "/operations")
    finally:
        with site.database.write() as transaction:
            resolve(transaction, "rollup", "1")
    for text in ("Scrapes of Slurm", "Workers", "Lost batches", "Tokens of clusters"):
        assert text in document.text
    assert "the <reason>" in document.text
    assert "not healthy" in document.text
    with seen_by(user("stranger")):
        assert visit.get("/operations").status_code == 404
        assert "/operations" not in links(open_page(visit, "/help"), "/")


def test_every_question_mark_leads_to_a_heading(visit: TestClient) -> None:
    headings = {each.get("id") for each in open_page(visit, "/help/figures").all("h2")}
    asked = set()
    for address in ("/users/anna", "/accounts", "/clusters/north", "/users/anna?days=90"):
        asked |= set(re.findall(r"/help/figures#([a-z-]+)", visit.get(address).text))
    assert asked
    assert asked <= headings


def test_every_topic_has_a_page(visit: TestClient) -> None:
    for topic in TOPICS:
        assert open_page(visit, f"/help/{topic}").all("h1")
    assert f"/help/{next(iter(TOPICS))}" in links(open_page(visit, "/help"), "/help/")
    metrics = open_page(visit, "/help/metrics")
    assert {each.get("id") for each in metrics.all("tr")} >= {*METRICS}
    reply = visit.get("/help/nothing")
    assert reply.status_code == 404
    assert "expected figures, metrics, privacy" in reply.text
