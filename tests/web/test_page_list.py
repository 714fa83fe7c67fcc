"""Every page is in the list of pages that the tests of all pages open."""

from starlette.routing import compile_path
from starlette.testclient import TestClient

from jobsight.access.rules import RULES
from jobsight.store.store import Store
from tests.server.routes import routes
from tests.web.conftest import PASSWORD
from tests.web.page_list import FILES, PAGES, Examples


def test_every_page_of_the_router_is_listed(visit: TestClient) -> None:
    """After a new page: add an address of it to ``PAGES``."""
    paths = {path for path, method in routes(visit.app) if method == "GET"}
    # The access control answers these itself; a test of the rules fails when one has no rule.
    paths |= {path for path in RULES if path.startswith("/sign-")}
    shown = {path for path in paths if not path.startswith("/api/")} - FILES
    assert sorted(shown - PAGES.keys()) == []
    assert sorted(PAGES.keys() - shown) == []


def test_every_address_leads_to_its_page(visit: TestClient, site: Store) -> None:
    del visit.headers["Authorization"]
    visit.post("/sign-in", data={"username": "carol", "password": PASSWORD})
    examples = Examples(site)
    for path, find in PAGES.items():
        for address in find(examples):
            assert compile_path(path)[0].match(address.partition("?")[0]), (path, address)
            reply = visit.get(address)
            assert reply.status_code == 200, (address, reply.text)
            assert reply.headers["content-type"].startswith("text/html"), address
            assert len(reply.content) < 200_000, address
