"""Pages in the language of their viewer."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import re
import string
from datetime import UTC
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from babel.messages.pofile import read_po
from starlette.testclient import TestClient

from jobsight.access.viewer import Role, Viewer
from jobsight.reports import queue, report
from jobsight.store.accounts.preferences import Preferences
from jobsight.store.read.visibility import EVERYTHING
from jobsight.store.store import Store
from jobsight.web.language import LANGUAGES, catalogue, preferred_language
from jobsight.web.messages import MESSAGES, SCRIPT_TEXTS
from jobsight.web.pages.compare import compared
from jobsight.web.pages.interval import CHOICES
from jobsight.web.pages.jobs import COLUMNS
from jobsight.web.render import NAVIGATION, find_zone, state_of
from tests.web.conftest import PASSWORD
from tests.web.document import Document
from tests.web.page_list import all_pages
from tests.web.viewers import seen_by

ROOT = Path(__file__).parents[2]
PO = ROOT / "src/jobsight/web/translations/fr.po"


@pytest.fixture(scope="module")
def translations() -> Any:
    """The program of ``make translations``."""
    path = str(ROOT / "scripts/translations")
    loader = importlib.machinery.SourceFileLoader("translations", path)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("translations", loader)
    )
    loader.exec_module(module)
    return module


def test_every_message_is_translated(translations: Any) -> None:
    """After a change of a text: ``make translations``, then write what is missing in fr.po."""
    wanted = {message.id for message in translations.extract() if message.id}
    french = {each.id: each.string for each in read_po(io.BytesIO(PO.read_bytes())) if each.id}
    assert wanted - french.keys() == set()
    assert french.keys() - wanted == set()
    assert [message for message, text in french.items() if not text] == []
    for message, text in french.items():
        assert sorted(re.findall(r"%\(\w+\)s", message)) == sorted(re.findall(r"%\(\w+\)s", text))


def test_words_of_python_are_among_the_messages() -> None:
    words = {entry.title for entry in NAVIGATION} | {text for _, text in CHOICES}
    words |= {column.title for column in COLUMNS.values()}
    words |= {state_of(state).word for state in report._STATE_TEXTS}
    words |= {*queue._REASONS.values()} | {text for _, text in queue._KINDS}
    words |= {*report.GROUPS.values(), *report.GPU_GROUPS.values()}
    words |= {each.title for each in compared([])}
    assert words <= {*MESSAGES, *SCRIPT_TEXTS}


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", "en"),
        ("fr", "fr"),
        ("fr-CH, fr;q=0.9, en;q=0.8", "fr"),
        ("en-GB,en;q=0.9,fr;q=0.8", "en"),
        ("de, fr;q=0.5", "fr"),
        ("de", "en"),
        ("fr;q=0, en;q=0.1", "en"),
        ("fr;q=x, en;q=0.1", "en"),
        (";;;,,=;q", "en"),
        ("x" * 10_000 + ",fr", "en"),
    ],
)
def test_the_language_that_a_browser_prefers(header: str, language: str) -> None:
    assert preferred_language(header) == language


def test_a_page_in_french(visit: TestClient) -> None:
    reply = visit.get("/clusters/north", headers={"Accept-Language": "fr"})
    document = Document(reply.text)
    assert document.all("html")[0]["lang"] == "fr"
    assert "Accept-Language" in reply.headers["vary"]
    for text in ("Pourquoi des jobs attendent", "Charge au fil du temps", "Nœuds", "Comptes"):
        assert text in document.text
    for text in ("Why jobs wait", "Load over time", "Longest waiting"):
        assert text not in document.text
    english = visit.get("/clusters/north")
    assert Document(english.text).all("html")[0]["lang"] == "en"


def test_the_choice_of_the_viewer_comes_before_the_browsers(visit: TestClient) -> None:
    chosen = Viewer(
        name="carol", role=None, visibility=EVERYTHING, preferences=Preferences(language="fr")
    )
    with seen_by(chosen):
        assert "Logiciels" in Document(visit.get("/software").text).words
        reply = visit.get("/software", headers={"Accept-Language": "en"})
        assert "Logiciels" in Document(reply.text).words


def test_the_help_is_in_french_too(visit: TestClient) -> None:
    french = {"Accept-Language": "fr"}
    for topic in ("figures", "privacy"):
        document = Document(visit.get(f"/help/{topic}", headers=french).text)
        assert "Ce" in document.words
    headings = [
        {
            each.get("id")
            for each in Document(visit.get("/help/figures", headers=each).text).all("h2")
        }
        for each in ({}, french)
    ]
    assert headings[0] == headings[1]


def test_a_catalogue_keeps_texts_that_it_does_not_have() -> None:
    assert catalogue("fr").gettext("no such message") == "no such message"
    assert [catalogue(language).gettext("Help") for language in LANGUAGES] == ["Help", "Aide"]
    assert string.ascii_letters == catalogue("en").gettext(string.ascii_letters)


def test_times_are_in_the_zone_of_the_viewer_with_utc(visit: TestClient) -> None:
    chosen = Viewer(
        name="carol",
        role=Role.STAFF,
        visibility=EVERYTHING,
        preferences=Preferences(time_zone="Europe/Paris"),
    )
    with seen_by(chosen):
        text = Document(visit.get("/clusters/north").text).text
    # The maintenance of the made-up site begins at midnight UTC.
    assert "2026-11-07 01:00:00 CET 00:00:00 UTC" in text
    assert "2026-11-07 00:00:00 UTC" in Document(visit.get("/clusters/north").text).text
    assert find_zone("No/Such_Zone") is find_zone(None) is find_zone("../etc/passwd") is UTC


#: What is shown as it is: commands, code, and the texts of rules, Slurm and users in them.
_VERBATIM = frozenset({"script", "style", "pre", "code", "noscript"})


class Texts(HTMLParser):
    """The texts of a page: of its elements, and of attributes that are read out or shown."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._verbatim = 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._verbatim += tag in _VERBATIM
        for name, value in attrs:
            if name in ("aria-label", "title", "placeholder", "alt", "data-label"):
                self.handle_data(value or "")

    def handle_endtag(self, tag: str) -> None:
        self._verbatim -= tag in _VERBATIM

    def handle_data(self, data: str) -> None:
        if not self._verbatim and data.strip():
            self.found.add(" ".join(data.split()))


#: Shown as they are: a reason and states of nodes of Slurm, a name of software, and a role.
_NAMES = frozenset({"Priority", "allocated", "idle", "system", "user"})


def english_messages() -> tuple[set[str], list[re.Pattern[str]]]:
    """The messages that French says in other words: texts, and patterns of texts with values.

    A text of more than four words is also found within another one.
    """
    texts, patterns = set(), []
    for message in read_po(io.BytesIO(PO.read_bytes())):
        text = " ".join(str(message.id).split())
        pieces = re.split(r"%\(\w+\)s", text.replace("%%", "%"))
        words = len(re.findall(r"[A-Za-z]{2,}", " ".join(pieces)))
        if not words or message.string == message.id or text in _NAMES:
            continue
        if len(pieces) == 1:
            texts.add(text)
        # Notes of reports have the names of groups, in English.
        is_whole = text in report.GPU_GROUPS.values()
        if (words > 4 and not is_whole) or (len(pieces) > 1 and words > 2):
            around = ".*" if words > 4 else ""
            pattern = r"\S+".join(map(re.escape, pieces))
            patterns.append(re.compile(f"{around}{pattern}{around}"))
    return texts, patterns


# Errors, the sign-in page, comparisons and states were English.
@pytest.mark.long
def test_no_page_in_french_has_an_english_message(visit: TestClient, site: Store) -> None:
    del visit.headers["Authorization"]
    visit.headers["Accept-Language"] = "fr"
    # Titles of metrics are shown as they are.
    pages = [("carol", each) for each in all_pages(site) if each != "/help/metrics"]
    pages += [("anna", address) for address in ("/", "/findings", "/settings", "/no/such/page")]
    pages += [("audra", "/settings"), ("wrong", "/")]
    shown: dict[str, str] = {}
    for name, address in pages:
        visit.cookies.clear()
        signed_in = visit.post("/sign-in", data={"username": name, "password": PASSWORD})
        reply = signed_in if name == "wrong" else visit.get(address)
        for text in Texts(reply.text).found:
            shown.setdefault(text, f"{name} {address}")
    texts, patterns = english_messages()
    found = {text: address for text, address in shown.items() if text in texts}
    for text, address in shown.items():
        if any(pattern.fullmatch(text) for pattern in patterns):
            found[text] = address
    assert found == {}


def test_the_texts_of_the_scripts_are_among_the_messages() -> None:
    scripts = "\n".join(path.read_text() for path in (PO.parents[1] / "static").glob("*.js"))
    used = set(re.findall(r'\b(?:_|N_)\("([^"]+)"', scripts))
    assert len(used) > 40
    assert used == {*SCRIPT_TEXTS}
    # No other text with a space stands in a script.
    assert re.findall(r'(?<!_\()"[A-Z][a-z]+ [a-z][^"]*"', scripts) == []
