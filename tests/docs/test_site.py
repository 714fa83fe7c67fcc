"""The site of the documents: built strictly, complete, and loading nothing from other hosts."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class _Page(HTMLParser):
    """The addresses that a page loads, its links and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if given.get("id"):
            self.anchors.add(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loaded.append(str(given.get("href")))
        elif given.get("src"):
            self.loaded.append(str(given["src"]))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, _Page]:
    return {
        str(file.relative_to(site)): _Page(file.read_text())
        for file in site.rglob("*.html")
        if file.name != "404.html"
    }


def _nav(tree: object) -> list[str]:
    if isinstance(tree, str):
        return [tree]
    members = tree if isinstance(tree, list) else list(tree.values())  # type: ignore[attr-defined]
    return [name for member in members for name in _nav(member)]


def test_every_document_is_in_the_navigation() -> None:
    config = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text())
    named = _nav(yaml.safe_load(config)["nav"])
    assert len(named) == len(set(named))
    missing = {file.name for file in DOCS.glob("*.md")} - set(named)
    assert missing == set(), f"add {missing} to nav in mkdocs.yml"


def test_nothing_is_loaded_from_other_hosts(site: Path, pages: dict[str, _Page]) -> None:
    loaded = {address for page in pages.values() for address in page.loaded}
    assert {address for address in loaded if urlsplit(address).netloc} == set()
    for style in site.rglob("*.css"):
        text = style.read_text()
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//", text), style
        assert "@import" not in text, style


def test_every_link_within_the_site_leads_somewhere(site: Path, pages: dict[str, _Page]) -> None:
    wrong = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or (not parts.path and not parts.fragment):
                continue
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            if target.is_dir():
                target /= "index.html"
            key = os.path.relpath(target, site)
            if not target.exists() or (
                parts.fragment
                and key in pages
                and not parts.fragment.startswith("__")
                and unquote(parts.fragment) not in pages[key].anchors
            ):
                wrong.append(f"{name}: {link}")
    assert wrong == []


def test_documents_agree_on_the_bytes_of_a_value() -> None:
    comparison, store = ((DOCS / name).read_text() for name in ("comparison.md", "store.md"))
    compared = re.search(
        r"Prometheus ([\d.]+), VictoriaMetrics ([\d.]+) \| ([\d.]+): ([\d.]+) of", comparison
    )
    measured = re.search(
        r"Prometheus ([\d.]+) bytes per value, VictoriaMetrics ([\d.]+) \| ([\d.]+): ([\d.]+) of",
        store,
    )
    assert compared is not None
    assert measured is not None
    assert compared.groups() == measured.groups()


def test_a_numbered_list_with_blocks_is_one_list(site: Path) -> None:
    documents = [file for file in DOCS.glob("*.md") if "\n   ```" in file.read_text()]
    assert len(documents) >= 4
    for document in documents:
        first = re.findall(r"^1\. ", document.read_text(), re.MULTILINE)
        page = (site / f"{document.stem}.html").read_text()
        assert page.count("<ol>") == len(first), document.name


def test_names_in_tables_are_divided_at_their_words(site: Path) -> None:
    assert (
        "Jobsight<wbr>Agent<wbr>Unreachable</code></td>" in (site / "operations.html").read_text()
    )
    assert "access.<wbr>session_<wbr>idle</code></td>" in (site / "settings.html").read_text()
    # Neither the slash at the beginning of a path nor half of a short name is left on a line.
    path = '<span class="whole">/etc/</span><wbr>jobsight/<wbr>jobsight.<wbr>toml</code>'
    assert path in (site / "install.html").read_text()
    assert "<code>MaxRSS</code>" in (site / "numbers.html").read_text()


@pytest.mark.parametrize(
    ("question", "page", "anchor"),
    [
        ("install on RHEL 9", "install.html", "rhel-8-and-9"),
        ("give my users access", "access.html", ""),
        ("what does memory used mean", "numbers.html", "memory-used"),
        ("what to do for an alert", "operations.html", "alerts"),
        ("install on Debian", "install.html", "debian-and-ubuntu"),
        ("upgrade", "upgrade.html", "upgrade"),
        ("remove", "upgrade.html", "removal"),
        ("move from SAMS", "migrating-from-sams.html", "migration-steps"),
        ("move from petricore", "petricore.html", "routes"),
        ("move from Clockwork", "clockwork.html", "steps"),
        ("move from the plugin", "slurm-plugin.html", "moving-over-from-the-plugin-of-2019"),
        ("sign in with OIDC", "access.html", "openid-connect"),
        ("sign in with LDAP", "access.html", "ldap"),
        ("use PostgreSQL", "postgresql.html", "moving-from-sqlite"),
        ("jobs in Grafana", "grafana.html", "data-source"),
        ("jobs in Open OnDemand", "grafana.html", "open-ondemand"),
        ("own rules of findings", "findings-rules.html", "a-rule"),
        ("own rules of software", "software.html", "rules"),
        ("own samplers", "samplers.html", "custom-samplers"),
        ("backups", "operations.html", "backups"),
        ("PrivateData", "privacy.html", "a-cluster-with-privatedata"),
    ],
)
def test_within_two_clicks_of_the_first_page(
    pages: dict[str, _Page], question: str, page: str, anchor: str
) -> None:
    """One click leads to the page; its own table of contents is the second."""
    links = {urlsplit(link).path for link in pages["index.html"].links}
    assert page in links, question
    if anchor:
        assert anchor in pages[page].anchors, question
