"""Every page for everybody: no violation that axe-core finds, in light and dark, on a phone, in
print, by keyboard, and in French."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from jobsight.model import Run
from jobsight.store.store import Store
from tests.web.conftest import PASSWORD
from tests.web.page_list import all_pages
from tests.web.test_browser import opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

AXE = Path(__file__).parents[2] / ".cache/npm/node_modules/axe-core/axe.min.js"
#: Staff with an account: the server's token is nobody's account, and has no settings.
CAROL = {"username": "carol", "password": PASSWORD}


@pytest.fixture(scope="module")
def pages(site: Store) -> list[str]:
    """The addresses of all pages of the made-up site."""
    return all_pages(site)


def open_whole(page: Page, address: str) -> int:
    """Open a page, wait until its charts are drawn, and return the status."""
    reply = page.goto(address, wait_until="networkidle")
    assert reply is not None
    # Each has a canvas, or says that there are no values.
    page.wait_for_function(
        "[...document.querySelectorAll('.plot-area')].every((each) => each.children.length)"
    )
    return reply.status


def violations(page: Page) -> list[str]:
    # What is folded in would not be looked at.
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    page.evaluate(AXE.read_text())
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in result["violations"]
        for node in each["nodes"]
    ]


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core; scripts/npm-packages installs it")
@pytest.mark.parametrize(
    ("scheme", "some"),
    [
        ("light", ("/jobs", "/clusters/north", "/help")),
        pytest.param("light", (), marks=pytest.mark.long),
        pytest.param("dark", (), marks=pytest.mark.long),
    ],
    ids=["some", "light", "dark"],
)
def test_axe_finds_nothing(
    browser: Browser, site_address: str, pages: list[str], scheme: str, some: tuple[str, ...]
) -> None:
    found = {}
    # The script of axe is no part of the pages, and their policy would forbid it.
    options = {"color_scheme": scheme, "bypass_csp": True}
    with opened(browser, site_address, CAROL, **options) as page:
        for address in some or pages:
            assert open_whole(page, site_address + address) == 200, address
            found[address] = violations(page)
    assert {address: each for address, each in found.items() if each} == {}


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core; scripts/npm-packages installs it")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.long
def test_axe_finds_nothing_on_an_error(browser: Browser, site_address: str, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    # Without a session, and of a run that does not exist.
    page.goto(f"{site_address}/jobs/999999")
    expect(page.get_by_role("button", name="Sign in").first).to_be_visible()
    assert violations(page) == []
    context.request.post(f"{site_address}/sign-in", form=CAROL)
    reply = page.goto(f"{site_address}/jobs/999999")
    assert reply is not None
    assert reply.status == 404
    assert violations(page) == []
    context.close()


@pytest.mark.long
def test_a_phone_never_scrolls_sideways(
    browser: Browser, site_address: str, pages: list[str]
) -> None:
    size = {"width": 390, "height": 844}
    with opened(browser, site_address, CAROL, viewport=size) as page:
        wide = []
        for address in pages:
            page.goto(site_address + address)
            if page.evaluate("document.documentElement.scrollWidth") > 390:
                wide.append(address)
    assert wide == []


def test_pages_print_without_navigation(browser: Browser, site_address: str) -> None:
    with opened(browser, site_address) as page:
        page.goto(f"{site_address}/clusters/north")
        page.emulate_media(media="print")
        expect(page.locator(".top nav")).not_to_be_visible()
        expect(page.locator(".intervals")).not_to_be_visible()
        expect(page.locator("#queue-title")).to_be_visible()


def test_the_keyboard_reaches_the_content_first(browser: Browser, site_address: str) -> None:
    with opened(browser, site_address) as page:
        page.goto(f"{site_address}/clusters/north")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url("**#content")
        # Tables that may scroll can be reached.
        assert page.locator('.table-frame:not([tabindex="0"])').count() == 0


def test_a_browser_in_french_gets_french(browser: Browser, site_address: str) -> None:
    with opened(browser, site_address, locale="fr-FR") as page:
        page.goto(f"{site_address}/clusters/north")
        assert page.locator("html").get_attribute("lang") == "fr"
        page.get_by_role("link", name="Logiciels").click()
        expect(page.get_by_role("heading", name="Logiciels")).to_be_visible()


def test_pages_are_complete_without_javascript(browser: Browser, site_address: str) -> None:
    with opened(browser, site_address, java_script_enabled=False) as page:
        page.goto(f"{site_address}/users/anna?days=90")
        page.get_by_text("As a table").first.click()
        expect(page.get_by_role("columnheader", name="Core hours held")).to_be_visible()


# They were English in every language.
def test_charts_are_in_the_language_of_the_page(
    browser: Browser, address: str, runs: dict[str, Run]
) -> None:
    with opened(browser, address, locale="fr-FR") as page:
        assert open_whole(page, f"{address}/jobs/{runs['train-model']}") == 200
        titles = page.locator(".plot h3").all_inner_texts()
        assert any(title.startswith("Mémoire") for title in titles)
        expect(page.get_by_role("button", name="demandé").first).to_be_visible()
        label = page.locator(".plot-area").first.get_attribute("aria-label")
        assert label is not None
        assert "Les touches fléchées lisent les valeurs." in label
