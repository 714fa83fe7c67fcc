"""Man pages and the sample settings of the packages are complete, and read without a warning."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.packages.manual import sample_settings, write_man_pages
from docs.generate import setting_fields
from jobsight.cli.main import COMMANDS
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings

EPOCH = 1_767_225_600


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_man_pages(tmp_path_factory.mktemp("man"), EPOCH)


def test_every_command_has_a_page(pages: list[Path]) -> None:
    assert {page.stem for page in pages} == {"jobsight", *(f"jobsight-{name}" for name in COMMANDS)}


def test_a_page_has_the_options_of_the_help(pages: list[Path]) -> None:
    (report,) = [page.read_text() for page in pages if page.stem == "jobsight-report"]
    assert "\\fB\\-\\-array\\fR \\fIID\\fR" in report
    assert "2026\\-01\\-01" in report.splitlines()[0].replace("-", "\\-")
    (store,) = [page.read_text() for page in pages if page.stem == "jobsight-store"]
    assert ".SS jobsight store check" in store


@pytest.mark.parametrize("program", ["mandoc", "man"])
def test_pages_render_without_a_warning(pages: list[Path], program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    options = {"mandoc": ["-T", "lint", "-W", "warning"], "man": ["--warnings", "-P", "cat", "-l"]}
    for page in pages:
        answer = subprocess.run(
            [program, *options[program], str(page)],
            capture_output=True,
            text=True,
            timeout=60,
            env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "MANWIDTH": "80"},
        )
        said = answer.stdout if program == "mandoc" else answer.stderr
        assert answer.returncode == 0, said
        assert said == "", page.name


def test_the_sample_settings_load_with_every_line_uncommented(tmp_path: Path) -> None:
    sample = sample_settings()
    assert all(line.startswith("#") for line in sample.splitlines() if line)
    lines = [
        line[1:] if line.startswith("#") and not line.startswith("##") else line
        for line in sample.splitlines()
    ]
    file = tmp_path / "jobsight.toml"
    file.write_text("\n".join(lines))
    settings = load_settings(file)
    assert settings.cluster == "alpha"
    # And as it is shipped: nothing is set.
    file.write_text(sample)
    assert load_settings(file).server.port == Settings().server.port


def test_the_sample_has_every_setting_with_its_meaning() -> None:
    lines = sample_settings().splitlines()
    for path, _, comment in setting_fields(Settings, ()):
        assert comment, path
        assert any(
            line.startswith((f"#{path[-1]} = ", f"## Or: {path[-1]} = ")) for line in lines
        ), path


def test_the_sample_depends_on_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sample_settings()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    monkeypatch.setenv("HOME", "/home/other")
    assert sample_settings() == before
