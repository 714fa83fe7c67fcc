"""The log of the commands: the same options everywhere, and the settings table ``log``."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobsight.cli.arguments import CommandParser
from jobsight.cli.completion import collect
from jobsight.cli.main import COMMANDS, main

#: Every command and subcommand that has options, as a person types it.
PATHS = sorted(each.path for each in collect() if each.options)
#: The agent configures its log in the background, `mail` only where its start may take longer.
OWN = [("agent",), ("mail",)]

_run = CommandParser.run


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The level with which each command was called, in place of what the command does."""
    config = tmp_path / "jobsight.toml"
    config.write_text('[log]\nlevel = "error"\ncommands = "critical"\n')
    monkeypatch.setenv("JOBSIGHT_CONFIG", str(config))
    seen: list[str] = []

    def run(
        self: CommandParser,
        function: Callable[..., Any],
        arguments: Sequence[str],
        **options: Callable[[Mapping[str, Any]], Any],
    ) -> int:
        def called(**given: Any) -> None:
            if "log_level" in given:
                seen.append(f"own {given['log_level']}")
            else:
                assert [handler.get_name() for handler in logging.getLogger().handlers].count(
                    "jobsight"
                ) == 1
                seen.append(logging.getLevelName(logging.getLogger("jobsight").level))

        for action in self._actions:
            action.required = False
        return _run(self, called, arguments, **options)

    monkeypatch.setattr(CommandParser, "run", run)
    return seen


def test_the_list_has_every_command() -> None:
    assert {path[0] for path in PATHS} == set(COMMANDS)


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_logs_by_option_and_setting(
    path: tuple[str, ...], levels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["--log-level", "INFO"], ["-v"], []):
        assert main([*path, *words]) == 0
    monkeypatch.setenv("JOBSIGHT_LOG__COMMANDS", "info")
    assert main([*path]) == 0
    if path in OWN:
        assert levels == ["own info", "own debug", "own None", "own None"]
    elif path == ("serve",):
        assert levels == ["INFO", "DEBUG", "ERROR", "ERROR"]
    else:
        assert levels == ["INFO", "DEBUG", "CRITICAL", "INFO"]


def test_scrape_at_intervals_is_a_service(levels: list[str]) -> None:
    assert main(["scrape", "--every", "5"]) == 0
    assert levels == ["ERROR"]


def test_a_wrong_level_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--log-level", "loud"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "expected one of debug, info, warning, error, critical, got 'loud'" in line


def test_a_wrong_setting_is_reported_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "jobsight.toml"
    config.write_text('[log]\ncommands = "loud"\n')
    assert main(["jobs", "--config", str(config)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "log.commands" in line


@pytest.mark.parametrize("terminal", [True, False])
def test_messages_are_brief_on_a_terminal(terminal: bool, tmp_path: Path) -> None:
    """A message of a command looks like its error; in a file or mail of cron it has a time."""
    code = (
        "import logging; from jobsight.cli.log import start_logging; start_logging(None, None);"
        "logging.getLogger('jobsight.store').warning('full')"
    )
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    environment.pop("JOURNAL_STREAM", None)
    reader, writer = pty.openpty() if terminal else os.pipe()
    # Read afterwards: a line fits into every pipe and terminal.
    subprocess.run([sys.executable, "-c", code], stderr=writer, check=True, env=environment)
    shown = os.read(reader, 1000).decode().rstrip()
    os.close(writer)
    os.close(reader)
    if terminal:
        assert shown == "jobsight: full"
    else:
        assert re.fullmatch(r"\d{4}-\S+ \S+ WARNING jobsight\.store: full", shown)


def test_mail_and_agent_log_by_the_option(tmp_path: Path) -> None:
    code = (
        "import logging, sys; from jobsight.cli.main import main; main(sys.argv[1:]);"
        "print(logging.getLevelName(logging.getLogger('jobsight').level))"
    )

    def level(*words: str) -> str:
        shown = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
        return shown.stdout.splitlines()[-1]

    mail = ["mail", "--queue", str(tmp_path), "-s", "Slurm Job_id=1 Name=x Ended", "ada"]
    assert level(*mail) == "NOTSET"
    assert level(*mail, "-v") == "DEBUG"
    # The pid file is a directory: the agent ends, after it has started its log.
    assert level("agent", "--loglevel", "ERROR", "--pidfile", str(tmp_path)) == "ERROR"
