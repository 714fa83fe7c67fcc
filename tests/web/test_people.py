"""The pages of users and accounts."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from jobsight.model import SECOND
from jobsight.reports.standing import compare_user
from jobsight.server.app import create_app
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.coordinators import record_coordinators
from jobsight.store.read.visibility import VisibleAccount
from jobsight.store.rollups.usage import Question, UsageRow, usage
from jobsight.store.store import Store
from jobsight.util.units import format_hours, format_share, format_time
from jobsight.web.pages.interval import DAY, Interval
from jobsight.web.pages.people import visible_days
from tests.server.batches import batch
from tests.web.conftest import SITE_NOW, TOKEN
from tests.web.document import Document
from tests.web.viewers import AUDITOR, STAFF, coordinator, seen_by, user

MONTH = Interval.of(30, SITE_NOW)


def open_page(client: TestClient, address: str) -> Document:
    reply = client.get(address)
    assert reply.status_code == 200, reply.text
    return Document(reply.text)


@pytest.fixture(scope="module")
def largest(site: Store) -> UsageRow:
    """The user and account with the most core hours of the month."""
    question = Question(by=("user", "account"), since=MONTH.since, until=MONTH.until)
    with site.database.read() as connection:
        return usage(connection, question)[0]


def test_a_user_has_hours_findings_scripts_and_software(
    visit: TestClient, site: Store, largest: UsageRow
) -> None:
    document = open_page(visit, f"/users/{largest.user}")
    with site.database.read() as connection:
        [total] = usage(
            connection,
            Question(by=(), user=largest.user, since=MONTH.since, until=MONTH.until),
        )
    assert f"{format_hours(total.core_hours)} held" in document.text
    for text in ("What it costs", "Use over time", "Scripts", "Software", "Fair share"):
        assert text in document.text
    assert "Waiting for the start" in document.text
    hrefs = [each.get("href") or "" for each in document.all("a")]
    assert any(href.startswith("/scripts/") for href in hrefs)
    assert any(href.startswith("/software/") for href in hrefs)


def test_the_comparison_has_quartiles_and_no_names(
    visit: TestClient, site: Store, largest: UsageRow
) -> None:
    standing = compare_user(site, largest.user or "", MONTH.since, MONTH.until).cpu
    assert standing is not None
    assert standing.users >= 5
    assert standing.quartile <= standing.median <= standing.upper_quartile
    with seen_by(user(largest.user or "")):
        document = open_page(visit, f"/users/{largest.user}")
    assert f"the median {format_share(standing.median)}" in document.text
    with site.database.read() as connection:
        others = {row.user for row in usage(connection, Question(by=("user",)))} - {largest.user}
    assert not others & set(document.words)


def test_fewer_than_five_users_are_not_compared(site: Store, largest: UsageRow) -> None:
    day = next(
        day
        for day in range(MONTH.since, MONTH.until)
        if 0 < _users(site, day) < 5 or day == MONTH.until - 1
    )
    with site.database.read() as connection:
        rows = usage(connection, Question(by=("user",), since=day, until=day + 1))
    assert rows
    assert len(rows) < 5
    for row in rows:
        standings = compare_user(site, row.user or "", day, day + 1)
        assert standings.cpu is None
        assert standings.gpu is None


def _users(site: Store, day: int) -> int:
    with site.database.read() as connection:
        return len(usage(connection, Question(by=("user",), since=day, until=day + 1)))


def test_users_see_their_own_page_only(visit: TestClient, largest: UsageRow) -> None:
    with seen_by(user("stranger")):
        hidden = visit.get(f"/users/{largest.user}")
        unknown = visit.get("/users/nobody-at-all")
        assert hidden.status_code == unknown.status_code == 404
        assert hidden.text.replace(largest.user or "", "X") == unknown.text.replace(
            "nobody-at-all", "X"
        )
        assert visit.get(f"/accounts/{largest.account}").status_code == 404
        listed = visit.get("/users", follow_redirects=False)
        assert (listed.status_code, listed.headers["location"]) == (307, "/users/stranger")
        # The own page exists before the first job.
        assert "0 started" in open_page(visit, "/users/stranger").text
        assert "No account that you may see" in open_page(visit, "/accounts").text


def test_an_account_names_its_coordinators_with_their_source(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        assert store.write(batch(12))
        pairs = [("physics", "first"), ("other", "stranger")]
        record_coordinators(store.database, "north", pairs)
        pairs += [("physics", "later"), ("physics", "gone")]
        record_coordinators(store.database, "north", pairs, now=SITE_NOW)
        record_coordinators(store.database, "north", pairs[:-1], now=SITE_NOW + SECOND)
        accounts = UserAccounts(store.database)
        accounts.add("given", "coordinator", accounts=["physics"])
        accounts.add("left", "coordinator", accounts=["physics"])
        accounts.disable("left")
        accounts.add("helper", "mentor", accounts=["physics"])
        client = TestClient(create_app(store, TOKEN, delay=0), base_url="http://127.0.0.1:8080")
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        text = open_page(client, "/accounts/physics").text
    assert "first Slurm of north before the first scrape" in text
    assert f"later Slurm of north {format_time(SITE_NOW)}" in text
    assert "given user account always" in text
    assert not {"gone", "left", "helper", "stranger"} & set(text.split())


def test_a_coordinator_sees_the_account_but_not_its_members_pages(
    visit: TestClient, largest: UsageRow
) -> None:
    account = largest.account or ""
    with seen_by(coordinator("head", VisibleAccount(account))):
        document = open_page(visit, f"/accounts/{account}")
        assert largest.user in document.words
        assert f"/users/{largest.user}" not in [each.get("href") for each in document.all("a")]
        listed = open_page(visit, "/accounts")
        assert [
            href for each in listed.all("a") if "/accounts/" in (href := each["href"] or "")
        ] == [f"/accounts/{account}"]
    with seen_by(STAFF):
        document = open_page(visit, f"/accounts/{account}")
        assert f"/users/{largest.user}" in [each.get("href") for each in document.all("a")]


def test_days_outside_of_the_coordinators_time_are_left_out() -> None:
    first, last = MONTH.since + 3, MONTH.until - 5
    seen = VisibleAccount("a", since=first * DAY - 7 * SECOND, until=last * DAY + SECOND)
    assert visible_days(coordinator("head", seen), "a", MONTH)[1:] == (first, last)
    assert visible_days(STAFF, "a", MONTH) == MONTH
    over = VisibleAccount("a", until=10 * DAY)
    assert visible_days(coordinator("head", over), "a", MONTH)[1:] == (MONTH.since, MONTH.since)


@pytest.mark.parametrize("sort", ["core_hours", "cpu_share", "gpu_hours", "gpu_share", "waste"])
def test_the_list_is_sorted_by_every_column(visit: TestClient, sort: str) -> None:
    document = open_page(visit, f"/users?sort={sort}&days=90")
    names = [
        href for each in document.all("a") if (href := each["href"] or "").startswith("/users/")
    ]
    assert len(names) > 5
    assert names != sorted(names)
    assert any("aria-sort" in each for each in document.all("th"))
    assert visit.get("/users?sort=name").status_code == 422


def test_an_auditor_sees_no_names(visit: TestClient, largest: UsageRow) -> None:
    with seen_by(AUDITOR):
        for address in ("/users", "/accounts", f"/users/{largest.user}"):
            assert visit.get(address).status_code == 404
        for address in ("/software/gromacs", "/clusters/north", "/findings"):
            document = open_page(visit, address)
            assert largest.user not in document.words
            assert largest.account not in document.words


def test_a_name_that_never_occurred_is_not_found(visit: TestClient) -> None:
    assert visit.get("/users/never").status_code == 404
    assert visit.get("/accounts/never").status_code == 404
