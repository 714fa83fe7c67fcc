"""Findings on the pages: cards, list, charts and help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

from jobsight.findings.finding import Evidence, Finding
from jobsight.findings.stored import to_row
from jobsight.model import SECOND, RunReference
from jobsight.server.app import create_app
from jobsight.store.findings.write import store_judged
from jobsight.store.store import Store
from jobsight.web.render import markdown
from tests.store.findings.sample import judged as row_of
from tests.web import findings, sample
from tests.web.conftest import TOKEN, served
from tests.web.document import Document
from tests.web.test_browser import drawn, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAME = "lammps-melt"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The sample runs, two of them with findings."""
    with Store.open(tmp_path_factory.mktemp("findings") / "store.db") as store:
        sample.fill(store, extra=2)
        for run in store.runs(limit=100):
            if run.info.name == NAME:
                findings.add(store, run)
            if run.info.name == "storm":
                findings.add(store, run, 1)
        yield store


@pytest.fixture
def client(judged: Store) -> TestClient:
    made = TestClient(create_app(judged, TOKEN, delay=0), base_url="http://127.0.0.1:8080")
    made.headers["Authorization"] = f"Bearer {TOKEN}"
    return made


def address_of(store: Store, name: str = NAME) -> str:
    return next(f"/jobs/{run.run}" for run in store.runs(limit=100) if run.info.name == name)


def test_cards_come_before_the_figures_the_worst_first(client: TestClient, judged: Store) -> None:
    text = client.get(address_of(judged)).text
    places = [text.index(f'id="{name}"') for name in (
        "finding-idle-after-work", "finding-memory-request-unused", "finding-fork-storm",
        "finding-time-limit-far", "figures",
    )]  # fmt: skip
    assert places == sorted(places)
    page = Document(text)
    assert "1,240 core h, 38 GPU h" in page.text
    assert "#SBATCH --mem=2G" in page.text
    assert "acknowledged by anna" in page.text
    assert "<script>alert(1)</script>" not in text


def test_a_run_without_findings_has_no_heading(client: TestClient, judged: Store) -> None:
    assert "findings-title" not in client.get(address_of(judged, "grow")).text.replace(
        'aria-labelledby="findings-title"', ""
    )


@pytest.mark.parametrize(
    ("hours", "shown"),
    [
        (2, "08:00 to 10:00 UTC in the charts"),
        (30, "2026-03-01 08:00 to 2026-03-02 14:00 UTC in the charts"),
    ],
)
def test_evidence_of_two_days_has_their_dates(tmp_path: Path, hours: int, shown: str) -> None:
    since = 1_772_352_000 * SECOND
    evidence = Evidence(series=("cpu.time",), since=since, until=since + hours * 3600 * SECOND)
    with Store.open(tmp_path / "store.db") as store:
        sample.fill(store)
        (run,) = [each for each in store.runs(limit=100) if each.info.name == NAME]
        finding = Finding(
            kind="sleeping", severity="info", title="It slept", text="It slept.", evidence=evidence
        )
        store_judged(store.database, [row_of(run, to_row(finding))], sample.NOW)
        app = create_app(store, TOKEN, delay=0)
        client = TestClient(app, base_url="http://127.0.0.1:8080")
        text = client.get(f"/jobs/{run.run}", headers={"Authorization": f"Bearer {TOKEN}"}).text
    assert shown in Document(text).text


def test_the_list_marks_and_filters_runs(client: TestClient) -> None:
    text = client.get("/jobs").text
    assert text.count("severity-critical") == 2
    assert '<option value="fork-storm">' in text
    text = client.get("/jobs?finding=fork-storm").text
    assert NAME in text
    assert "storm</span>" not in text.replace("fork-storm", "")
    assert "No job matches" in client.get("/jobs?finding=no-such").text


def test_the_help_of_a_rule_is_a_page(client: TestClient) -> None:
    text = client.get("/findings/memory-request-unused").text
    assert "<h1>Most of the requested memory was not used</h1>" in text
    assert "<table>" in text
    assert client.get("/findings/no-such-rule").status_code == 404


def test_markdown_of_a_site_cannot_bring_html() -> None:
    assert "<b>" not in markdown("<b>bold</b> [x](javascript:alert(1)) [`a`](other-rule.md)")
    assert "javascript:" not in markdown("[x](javascript:alert(1))").replace("(javascript", "")
    assert 'href="other-rule"' in markdown("[`a`](other-rule.md)")


SHADED = """() => [...document.querySelectorAll('.plot-area')].map(
  (area) => area.getAttribute('aria-label').includes('Shaded from'))"""


@pytest.mark.browser
def test_evidence_is_shaded_in_the_charts(browser: Browser, judged: Store, tmp_path: Path) -> None:
    with served(judged) as address, opened(browser, address) as page:
        page.goto(f"{address}{address_of(judged)}")
        drawn(page)
        assert page.evaluate(SHADED) == [True, True, False, False]


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_cards_do_not_widen_the_page(browser: Browser, judged: Store, width: int) -> None:
    size = {"width": width, "height": 900}
    with served(judged) as address, opened(browser, address, viewport=size) as page:
        for path in ("/", address_of(judged), "/findings/memory-request-unused"):
            page.goto(f"{address}{path}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_viewer_replies_to_a_finding_by_its_buttons(judged: Store) -> None:
    app = create_app(judged, TOKEN, delay=0)
    browser = TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False)
    assert browser.post("/sign-in", data={"token": TOKEN}).status_code == 303
    address = address_of(judged)
    document = Document(browser.get(address).text)
    (form, *_) = [each for each in document.all("form") if "findings/" in (each["action"] or "")]
    (csrf, *_) = [each["value"] for each in document.all("input") if each.get("name") == "csrf"]
    action = form["action"] or ""
    kind = action.rpartition("/")[2]
    refused = browser.post(action, data={"state": "acknowledged", "csrf": "guessed"})
    assert refused.status_code == 403
    assert browser.post(action, data={"state": "forgotten", "csrf": csrf}).status_code == 422
    nothing = browser.post(f"{address}/findings/no-such", data={"state": "open", "csrf": csrf})
    assert nothing.status_code == 404
    for state in ("acknowledged", "not helpful", "open"):
        reply = browser.post(action, data={"state": state, "csrf": csrf})
        assert (reply.status_code, reply.headers["location"]) == (303, f"{address}#findings")
        run = judged.find(RunReference.parse(address.removeprefix("/jobs/")))
        (row,) = [each for each in judged.findings(run.id) if each.kind == kind]
        assert row.state == state
