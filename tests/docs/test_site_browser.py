"""The site of the documents in a real browser: readable on a phone, nothing loaded from elsewhere,
and the questions of a newcomer answered within two clicks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.long]

PAGES = ("index", "install", "numbers", "operations", "access")
PHONE, DESK = 390, 1280


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_given: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def opened(browser: Browser, width: int) -> Iterator[tuple[Page, list[str]]]:
    """A page of this width, and the addresses that it requests."""
    context = browser.new_context(viewport={"width": width, "height": 844})
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    yield page, requests
    context.close()


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_window_and_asks_no_other_host(
    browser: Browser, address: str, name: str, width: int
) -> None:
    with opened(browser, width) as (page, requests):
        reply = page.goto(f"{address}/{name}.html", wait_until="networkidle")
        assert reply is not None
        assert reply.status == 200
        expect(page.locator("h1")).to_be_visible()
        sizes = page.evaluate(
            "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert sizes[0] <= sizes[1] == width
        # What is wider than the window scrolls within itself: nothing is cut and out of reach.
        assert page.evaluate(CUT) == []
        assert len(requests) > 3
        host = urlsplit(address).netloc
        others = {url for url in requests if urlsplit(url).scheme not in ("data", "blob")}
        assert {urlsplit(url).netloc for url in others} == {host}


#: Elements of the text that reach out of the window, and that nothing around them can scroll.
CUT = """() => [...document.querySelectorAll('.md-content__inner *')].filter(element => {
    if (element.getBoundingClientRect().right <= innerWidth + 1) return false;
    for (let each = element; each; each = each.parentElement)
        if (['auto', 'scroll'].includes(getComputedStyle(each).overflowX)) return false;
    return getComputedStyle(element).visibility !== 'hidden';
}).map(element => element.outerHTML.slice(0, 100))"""

QUESTIONS = {
    "install on RHEL 9": (["RHEL 8 and 9"], "install.html#rhel-8-and-9", "RHEL 8 and 9"),
    "give my users access": (["local"], "access.html#local-accounts", "Local accounts"),
    "what does memory used mean": (["Memory used"], "numbers.html#memory-used", "Memory used"),
}


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_within_two_clicks(
    browser: Browser, address: str, question: str, width: int
) -> None:
    """From the first page, by what can be seen and clicked there."""
    links, target, title = QUESTIONS[question]
    assert len(links) <= 2
    with opened(browser, width) as (page, _):
        page.goto(f"{address}/index.html")
        for link in links:
            page.locator(".md-content").get_by_role("link", name=link, exact=True).first.click()
        page.wait_for_url(f"{address}/{target}")
        heading = page.locator(".md-content").get_by_role("heading", name=title).first
        expect(heading).to_be_in_viewport()
        # The bar at the top does not cover it.
        bar = page.locator(".md-header").bounding_box()
        place = heading.bounding_box()
        assert bar is not None
        assert place is not None
        assert place["y"] >= bar["y"] + bar["height"] - 1
