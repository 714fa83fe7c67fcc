"""The commands that SAMS has for its database, over this store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jobsight.cli.compat import aggregator, software_extractor, software_updater
from jobsight.store.store import Store
from jobsight.util.locks import LockFile
from tests.export.documents import read_all
from tests.sams.documents import Site, document

RULES = r"""
  rules:
    - match: '^/sw/(?P<s>[^/]+)/(?P<v>[^/]+)/'
      software: '%(s)s'
      version: '%(v)s'
      versionstr: ''
"""
HOSTILE = {"/sw/100%/1/x": 1.0, "/sw/<&>/1/x": 1.0, "/sw/a\nb/1/x": 1.0, "/sw/\udcff/1/x": 1.0}
Command = Callable[..., str]


@pytest.fixture
def command(site: Site, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command with the site's file; gives what it prints."""
    config = site.folder / "sams.yaml"
    config.write_text(
        f"sams.software-updater: {{store: '{site.store}'}}\n"
        f"sams.software-extractor: {{store: '{site.store}', timezone: UTC}}\n"
        f"sams.xmlwriter.File: {{output_path: {site.folder}/xml}}\n"
        f"sams.software.Regexp:{RULES}"
    )

    def run(program: str, *arguments: str, code: int = 0) -> str:
        main = {"update": software_updater.main, "extract": software_extractor.main}[program]
        assert main(["--config", str(config), *arguments]) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return run


def book(site: Site, job_id: int, *paths: str) -> None:
    execs = {path: {"user": 3600.0, "system": 0.0} for path in paths}
    site.put(document(job_id, execs=execs, length=1800))
    assert aggregator.main(["--config", str(site.config)]) == 0


def reported(site: Site) -> list[tuple[int, list[str]]]:
    return [
        (int(name.split(":")[1]), [one[0] for one in software])
        for name, software in read_all(site.folder / "xml")
    ]


def test_paths_are_shown_with_their_hours_and_jobs(site: Site, command: Command) -> None:
    book(site, 1, "/sw/A/1.2/bin/a", "/opt/b")
    book(site, 2, "/sw/A/1.2/bin/a")
    command("update")
    assert command("update", "--show-software", "A") == (
        "Path: /sw/A/1.2/bin/a\n\tSoftware     : A\n\tVersion      : 1.2\n\tLocal Version: \n"
        "\tUser Provided: 0\n\tIgnore       : 0\n\tCore Hours   : 3.0\n\tJob Count    : 2\n"
    )
    assert command("update", "--show-undetermined") == "/opt/b\n"
    everything = command("update", "--show-paths")
    assert "Path: /opt/b\n\tSoftware is not determined\n\tCore Hours   : 1.0\n" in everything
    # Both ways that SAMS's documents have.
    assert command("update", "--show-path=%") == command("update", "--show-path=*") == everything


def test_a_dry_run_says_what_would_change_and_changes_nothing(site: Site, command: Command) -> None:
    book(site, 1, "/sw/A/1.2/bin/a")
    assert command("update", "--dry-run") == (
        "undetermined -> A 1.2: 1 paths, 1 jobs, 2.0 core hours\n"
    )
    assert command("update", "--show-undetermined") == "/sw/A/1.2/bin/a\n"
    command("update", "--dry-run", "--reset-path", "*")
    command("extract")
    assert reported(site) == []


def test_a_reset_reports_jobs_again(site: Site, command: Command) -> None:
    book(site, 1, "/sw/A/1.2/bin/a")
    book(site, 2, "/sw/B/1/bin/b")
    command("update")
    command("extract")
    command("extract")
    assert reported(site) == [(1, ["A"]), (2, ["B"])]
    command("update", "--dry-run", "--reset-path", "*")
    assert "Software     : B" in command("update", "--reset-software", "B")
    command("extract")
    assert reported(site) == [(1, ["A"]), (2, ["B"]), (2, ["B"])]
    command("update", "--reset-path", "*")
    command("extract")
    assert reported(site)[3:] == [(1, ["A"]), (2, ["B"])]


def test_what_another_program_reported_is_skipped(site: Site, command: Command) -> None:
    book(site, 1, "/sw/A/1.2/bin/a")
    command("update")
    command("extract", "--skip")
    book(site, 2, "/sw/B/1/bin/b")
    command("update")
    command("extract")
    assert reported(site) == [(2, ["B"])]
    command("update", "--reset-path", "*")
    command("extract")
    assert reported(site)[1:] == [(1, ["A"]), (2, ["B"])]


def test_hostile_paths_stop_nobody(site: Site, command: Command) -> None:
    """One of them ends SAMS's export for everybody."""
    book(site, 1, *HOSTILE)
    command("update")
    command("extract")
    assert reported(site) == [(1, ["100%", "<&>", "\\xff", "a\\x0ab"])]
    # As the store shows it, it can be requested.
    assert "Software     : a\\x0ab" in command("update", "--test-path", "/sw/a\\x0ab/1/x")


def test_without_a_file_of_sams_our_own_settings_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "jobsight.toml"
    own.write_text(
        f"[store]\nlocation = '{tmp_path}/own.db'\n[export]\noutput_path = '{tmp_path}/xml'\n"
    )
    monkeypatch.setenv("JOBSIGHT_CONFIG", str(own))
    monkeypatch.setattr("jobsight.cli.compat.common.default_config", lambda program: tmp_path / "-")
    assert software_updater.main(["--test-path", "/usr/bin/python3.11"]) == 0
    assert "Software     : Python\n" in capsys.readouterr().out
    assert software_extractor.main([]) == 1
    assert f"there is no store at {tmp_path}/own.db" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [own]
    Store.open(tmp_path / "own.db").close()
    assert software_extractor.main([]) == 0
    assert (tmp_path / "xml").is_dir()


def test_a_wrong_path_does_not_become_a_store(tmp_path: Path, command: Command) -> None:
    nowhere = tmp_path / "nowhere.db"
    for program, *arguments in (("update",), ("update", "--show-paths"), ("extract",)):
        said = command(program, *arguments, "--store", str(nowhere), code=1)
        assert f"there is no store at {nowhere}" in said
    assert not nowhere.exists()
    assert not (tmp_path / "xml").exists()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("sams.software-updater:", "sams.software-update:", "did you mean sams.software-update"),
        ("sams.software-updater: {", "sams.software-updater: {updater: my.Rules, ", "there is no "
         "module named 'my.Rules'; expected sams.software.Regexp"),
        ("sams.software-updater: {", "sams.software-updater: {backend: x, ", "backend: there is"),
        ("match: '^/sw", "match: '^(/sw", "rule 1: match: "),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line(
    site: Site, command: Command, old: str, new: str, sentence: str
) -> None:
    config = site.folder / "sams.yaml"
    config.write_text(config.read_text().replace(old, new))
    said = command("update", code=2)
    assert said.startswith(f"sams-software-updater: {config}: ")
    assert sentence in said
    assert said.count("\n") == 1


def test_two_exports_into_one_folder_do_not_meet(site: Site, command: Command) -> None:
    Store.open(site.store).close()
    (site.folder / "xml").mkdir()
    lock = LockFile(site.folder / "xml" / ".lock", "a test")
    try:
        assert "an export to" in command("extract", code=1)
    finally:
        lock.close()
    command("extract")


def test_a_slip_in_a_key_is_a_warning(
    site: Site, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    config = site.folder / "sams.yaml"
    config.write_text(config.read_text().replace("output_path", "outputpath: x, output_path"))
    Store.open(site.store).close()
    assert software_extractor.main(["--config", str(config)]) == 0
    assert "unknown key sams.xmlwriter.File.outputpath; did you mean" in (capsys.readouterr().err)
