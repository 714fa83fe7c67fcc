"""A store with the sample runs and a real server before it, once for all tests of the pages."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import uvicorn
from starlette.testclient import TestClient

from jobsight.access.passwords import hash_password
from jobsight.config.settings import MailSettings
from jobsight.mail.subscriptions import Subscriptions
from jobsight.model import Run
from jobsight.server.app import create_app
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.audit import AuditLog
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.store import Store
from tests.web import sample

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TOKEN = "a-token-for-the-tests-of-the-pages"
#: Of the accounts of the made-up site.
PASSWORD = "correct horse battery"
CHROMIUM = "/usr/bin/chromium"
SUBSCRIPTIONS = Subscriptions(MailSettings(url="http://127.0.0.1:8080"), b"key" * 11)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("web") / "store.db") as opened:
        sample.fill(opened, extra=50)
        yield opened


@pytest.fixture(scope="session")
def runs(store: Store) -> dict[str, Run]:
    """The sample runs by name."""
    return {stored.info.name or "": stored.run for stored in store.runs(limit=100)}


@pytest.fixture
def client(store: Store) -> TestClient:
    made = TestClient(create_app(store, TOKEN, delay=0), base_url="http://127.0.0.1:8080")
    made.headers["Authorization"] = f"Bearer {TOKEN}"
    return made


@contextmanager
def served(store: Store, clock: Callable[[], int] = time.time_ns) -> Iterator[str]:
    """A server that browsers can ask; gives its address."""
    app = create_app(store, TOKEN, delay=0, clock=clock, subscriptions=SUBSCRIPTIONS)
    # The application has no lifespan of its own, and cancelling one would be logged as an error.
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        # A browser keeps its connections open; the server is not to wait for it.
        server.should_exit = server.force_exit = True
        thread.join(60)


@pytest.fixture(scope="session")
def address(store: Store) -> Iterator[str]:
    with served(store) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the whole session: while it lives, its event loop keeps other tests from theirs."""
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip(f"no browser at {CHROMIUM}; apt-get install chromium fonts-dejavu-core")
    from playwright.sync_api import sync_playwright

    options = "no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    options += " disable-component-update disable-sync"
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[f"--{option}" for option in options.split()]
        )
        yield made
        made.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A made-up site of two clusters with its findings and daily rollups, as of SITE_NOW."""
    from jobsight.config.settings import SoftwareSettings
    from jobsight.findings.service import FindingsService
    from jobsight.simulation.fill import fill
    from jobsight.simulation.year import Year
    from jobsight.software.worker import Worker

    with Store.open(tmp_path_factory.mktemp("site") / "store.db") as opened:
        fill(opened, Year(500, days=40, seed=3))
        FindingsService(opened).judge_once()
        worker = Worker(opened, SoftwareSettings())
        while worker.once().runs:
            pass
        _add_accounts(opened)
        yield opened


def _add_accounts(site: Store) -> None:
    """User accounts of the made-up site, with tokens and views."""
    accounts, password = UserAccounts(site.database), hash_password(PASSWORD)
    accounts.add("carol", "staff", password_hash=password)
    accounts.add("anna", "user", password_hash=password)
    accounts.add("audra", "auditor", password_hash=password)
    accounts.add("mentor", "mentor", accounts=["physics"])
    accounts.add("gone", "user")
    accounts.disable("gone")
    UserTokens(site.database).add("carol", "read", 90 * 86400 * 10**9, "laptop")
    log = AuditLog(site.database)
    log.record(user="carol", viewer="mentor", subject="the page of the user")
    log.record(user="anna", viewer="carol", subject="the page of the user")
    log.write()


#: Two minutes after the last scrape of the made-up site.
SITE_NOW = 1_793_491_320 * 10**9


@pytest.fixture
def visit(site: Store) -> TestClient:
    """A client of the made-up site with the server's token."""
    app = create_app(site, TOKEN, delay=0, clock=lambda: SITE_NOW, subscriptions=SUBSCRIPTIONS)
    made = TestClient(app, base_url="http://127.0.0.1:8080")
    made.headers["Authorization"] = f"Bearer {TOKEN}"
    return made


@pytest.fixture(scope="session")
def site_address(site: Store) -> Iterator[str]:
    with served(site, clock=lambda: SITE_NOW) as made:
        yield made
