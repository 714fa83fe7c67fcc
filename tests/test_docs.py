"""The documents keep up with the code: settings, options, routes, links, pictures."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from jobsight.cli import main as command
from jobsight.config.settings import Settings
from jobsight.findings.vocabulary import FIGURES
from jobsight.metrics import METRICS
from jobsight.server.app import create_app
from jobsight.store.store import Store

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
NAMES = ["jobsight", *(f"jobsight {name}" for name in command.COMMANDS), "sams-collector"]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_setting_is_described(generate: ModuleType) -> None:
    text = (DOCS / "settings.md").read_text()
    for line in generate.settings().splitlines()[2:]:
        key, variable = line.split("|")[1].strip(), line.split("|")[-2].strip()
        assert key in text, f"settings.md does not know {key}; type: make docs"
        assert variable in text, f"settings.md does not know {variable}; type: make docs"


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_a_command_is_described(generate: ModuleType, name: str) -> None:
    text = (DOCS / "commands.md").read_text()
    parts = dict(re.findall(r"<!-- generated: (.*?) -->\n(.*?)<!-- end -->", text, re.DOTALL))
    _, _, other = parts["others"].partition(f"## {name}\n")
    described = parts.get(name) or other
    assert described, f"commands.md does not know {name}; type: make docs"
    for option in set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", generate.helps(name))):
        assert option in described, f"commands.md does not know {name} {option}; type: make docs"


def test_every_finding_has_its_page(generate: ModuleType) -> None:
    rules = generate.shipped_rules()
    assert {file.stem for file in (DOCS / "findings").glob("*.md")} == {r.name for r in rules}
    for rule in rules:
        page = (DOCS / "findings" / f"{rule.name}.md").read_text()
        assert page == generate.finding_page(rule), f"{rule.name}.md is old; type: make docs"
        assert rule.help.strip(), f"{rule.name} has no help"


def test_findings_and_figures_are_listed(generate: ModuleType) -> None:
    text = (DOCS / "findings.md").read_text()
    assert generate.findings() in text, "findings.md is old; type: make docs"
    assert generate.figures() in text, "findings.md is old; type: make docs"
    # Every finding that the comparison with other tools names exists.
    table = text.partition("## Advice of other tools")[2]
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", table))
    assert named <= {rule.name for rule in generate.shipped_rules()}


def test_every_setting_has_a_description_of_its_own(generate: ModuleType) -> None:
    for path, _, comment in generate.setting_fields(Settings, ()):
        assert comment.endswith("."), f"{'.'.join(path)} has no description in config/settings.py"
    source = (ROOT / "src" / "jobsight" / "config" / "settings.py").read_text()
    assert not re.search(r"^ +#: .*\n +#: ", source, re.MULTILINE), "one line for each setting"


def test_every_route_is_described(tmp_path: Path) -> None:
    text = (DOCS / "api.md").read_text()
    with Store.open(tmp_path / "store.db") as store:
        described = create_app(store, "a-token-of-the-documents").openapi()
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            assert f"## `{method.upper()} {path}`" in text, f"api.md does not know {path}"
            for parameter in route.get("parameters", []):
                assert f"`{parameter['name']}`" in text or f"{{{parameter['name']}}}" in text


def test_metrics_named_in_the_documents_exist() -> None:
    for name in re.findall(r'"((?:cpu|memory|io|tasks)\.[a-z_]+)"', (DOCS / "api.md").read_text()):
        # Examples of findings name figures.
        assert name in METRICS or name in FIGURES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_are_there(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    for target in targets + re.findall(r'(?:src|srcset)="([^"]+)"', text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} points at {target}"


def test_the_index_names_every_document() -> None:
    text = (DOCS / "index.md").read_text()
    for page in DOCS.glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in text, f"index.md lacks {page.name}"


def test_the_targets_and_scripts_that_documents_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


def test_pictures_are_small_and_show_no_path_of_a_home() -> None:
    for picture in [*(DOCS / "pictures").glob("*.png"), *(DOCS / "pictures").glob("*.svg")]:
        assert picture.stat().st_size < 150 * 1024
    report = (DOCS / "pictures" / "report.svg").read_text()
    assert not re.search(r"/(root|home|srv|work|tmp)/", report)
    assert "://" not in report.replace("http://www.w3.org/2000/svg", "").replace(
        "https://www.textualize.io", ""
    )
