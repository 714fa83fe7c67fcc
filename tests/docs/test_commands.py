"""The command blocks of the documents: every line of jobsight is one that the command accepts, and
every other line is of a program that is known, with the reason why no test runs it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from jobsight.cli import main as command
from jobsight.cli.arguments import CommandParser
from jobsight.errors import JobsightError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)

#: Programs in blocks that no test of the documents runs, and why.
NOT_RUN = {
    "make": "the targets are what runs the tests",
    "git": "needs the repository's address",
    "apt-get": "changes the machine",
    "dnf": "needs RHEL",
    "systemctl": "needs systemd as PID 1: make test-guest",
    "curl": "needs a server of the site; tests/server tries the routes",
    "docker": "needs containers",
    "mongod": "no MongoDB can be had from the registries",
    "createuser": "changes a database server; tests/store uses its own",
    "createdb": "changes a database server; tests/store uses its own",
    "duckdb": "tests/archive runs the queries",
    "install": "changes the machine",
    "sams-software-extractor": "tests/cli/compat",
    "sgas-sa-registrant": "tests/cli/compat",
    "sams-collector.py": "tests/cli/compat",
    "export": "a variable",
    "zfs": "needs ZFS",
}


class Line(NamedTuple):
    page: str
    text: str


def lines() -> Iterator[Line]:
    for page in PAGES:
        text = re.sub(r"<!-- generated: .*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
        for _, language, body in _BLOCK.findall(text):
            if language in ("", "bash", "console", "sh"):
                joined = re.sub(r"\\\n\s*", "", body)
                for line in joined.splitlines():
                    yield Line(page.name, line.strip())


def commands() -> list[Line]:
    """The lines that call jobsight."""
    found = []
    for page, text in lines():
        shown = text.removeprefix("$ ").removeprefix(".venv/bin/")
        if re.match(r"jobsight [a-z]", shown):
            found.append(Line(page, shown))
    return found


class _Accepted(Exception):
    pass


@pytest.mark.parametrize("line", dict.fromkeys(commands()), ids=lambda line: line.text[:70])
def test_a_line_is_one_that_the_command_accepts(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments are parsed by the command itself, which then is not run."""

    def parse_only(self: CommandParser, function: object, arguments: list[str]) -> int:
        self.parse_args(list(arguments))
        raise _Accepted

    monkeypatch.setattr(CommandParser, "run", parse_only)
    words = shlex.split(re.sub(r"\$\([^)]*\)", "X", line.text), comments=True)
    ends = [index for index, word in enumerate(words) if word in ("|", "&", ">", "&&", ";", "<")]
    words = words[: ends[0]] if ends else words
    words = [word.rstrip(";") for word in words if not word.startswith(("2>", ">"))]
    # "..." stands for more, and [x] for what may be left out.
    words = [word for word in words if word != "..."]
    try:
        command._dispatch(words[1:])
    except _Accepted:
        return
    except (JobsightError, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == 0:
            return
        pytest.fail(f"{line.page}: {line.text}: {error}")


def test_every_other_program_is_known() -> None:
    programs = {
        match[1]
        for _, text in lines()
        if (
            match := re.match(
                r"(?:\$ )?(apt-get|dnf|systemctl|curl|docker|git|zfs|[a-z_.-]+ctl)\b", text
            )
        )
    }
    assert programs <= NOT_RUN.keys()
