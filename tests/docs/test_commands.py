"""The command blocks of the documents. Those of the tutorial are executed (test_tutorial.py). In
all others, every line of jobsight is one that the command accepts, and every other program is
known, with the reason why no test runs it there. A block of commands is marked `bash` or
`console`, and a test finds one that is not."""

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
#: Without docs/findings, whose blocks are the texts of the rules.
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_BLOCK = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
#: Languages of blocks that hold no commands.
OTHERS = {"", "ini", "javascript", "json", "python", "sql", "toml", "yaml"}

#: Programs in blocks that no test of the documents runs there, and why.
NOT_RUN = {
    "/software/jobsight/current/bin/jobsight": "tests/deploy/test_packages.py runs the archive",
    "apt-get": "changes the machine; tests/deploy/test_packages.py installs in fresh roots",
    "createdb": "changes a database server; tests/store uses its own",
    "createuser": "changes a database server; tests/store uses its own",
    "curl": "needs a server of the site; tests/server tries the routes",
    "dnf": "needs RHEL",
    "docker": "needs containers",
    "duckdb": "tests/archive runs the queries",
    "git": "needs the repository's address",
    "install": "changes the machine; tests/plugin loads the built plugin",
    "ln": "changes the machine; tests/deploy/test_packages.py runs the archive",
    "make": "the targets are what runs the tests",
    "mongod": "no MongoDB can be had from the registries",
    "mv": "follows zfs",
    "openssl": "makes a password",
    "pip": "tests/archive has its own environment of Spark",
    "python3": "follows zfs",
    "runuser": "tests/slurm/test_private_data.py runs the line on a real Slurm",
    "sacctmgr": "tests/slurm/test_private_data.py runs the lines on a real Slurm",
    "sams-collector.py": "tests/cli/compat",
    "sams-software-extractor": "tests/cli/compat",
    "sgas-sa-registrant": "tests/cli/compat",
    "systemctl": "needs systemd as PID 1: make test-guest",
    "tar": "changes the machine; tests/deploy/test_packages.py runs the archive",
    "zfs": "needs ZFS",
}
#: Of the shell and of every system.
SHELL = {"case", "cat", "date", "esac", "exec", "export", "source", "umask"}


class Line(NamedTuple):
    page: str
    text: str


class Block(NamedTuple):
    page: str
    language: str
    body: str


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = re.sub(r"<!-- generated: .*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
        for _, language, body in _BLOCK.findall(text):
            yield Block(page.name, language, re.sub(r"\\\n\s*", "", body))


def command_blocks() -> Iterator[Block]:
    """Blocks of commands, without the output of those marked `console`."""
    for block in blocks():
        if block.language == "bash":
            yield block
        elif block.language == "console":
            typed = re.findall(r"^\s*\$ (.*)$", block.body, re.MULTILINE)
            yield block._replace(body="\n".join(typed))


def commands() -> list[Line]:
    """The lines that call jobsight."""
    found = []
    for block in command_blocks():
        for line in block.body.splitlines():
            shown = line.strip().removeprefix(".venv/bin/")
            if re.match(r"jobsight [a-z]", shown):
                found.append(Line(block.page, shown))
    return found


def programs(body: str) -> list[str]:
    """The first word of each command: at the beginning of a line, and after | & ; and brackets."""
    lexer = shlex.shlex(
        re.sub(r"(^|\s)#.*", r"\1", body), posix=True, punctuation_chars="();<>|&\n"
    )
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    found, begins = [], True
    for token in lexer:
        if set(token) <= set("();<>|&\n"):
            begins = token[-1] in "(|&;\n" and token != ">&"
        elif begins and not re.match(r"[A-Za-z_]+=", token):
            found.append(token.removeprefix(".venv/bin/"))
            begins = False
    return found


class _Accepted(Exception):
    pass


@pytest.mark.parametrize("line", dict.fromkeys(commands()), ids=lambda line: line.text[:70])
def test_a_line_is_one_that_the_command_accepts(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments are parsed by the command itself, which then is not run."""

    def parse_only(self: CommandParser, function: object, arguments: list[str], **_: object) -> int:
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
    used = {
        (block.page, program)
        for block in command_blocks()
        if block.page != "tutorial.md"
        for program in programs(block.body)
    }
    unknown = {each for each in used if each[1] not in {"jobsight", *SHELL, *NOT_RUN}}
    assert unknown == set(), "run them in a test, or give the reason in NOT_RUN"
    stale = NOT_RUN.keys() - {program for _, program in used}
    assert stale == set(), "no block has these any more"


def test_a_block_of_commands_is_marked() -> None:
    known = {"jobsight", ".venv/bin/jobsight", "$", *NOT_RUN}
    for block in blocks():
        if block.language in ("bash", "console"):
            continue
        assert block.language in OTHERS, f"{block.page}: {block.language}"
        first = {line.split()[0] for line in block.body.splitlines() if line.strip()}
        if block.language == "":
            assert not first & known, f"{block.page}: mark this block with bash:\n{block.body}"


def test_programs_of_a_line() -> None:
    text = "TOKEN=$(cat f)\na b | c 'd | e' && f > g 2>&1; (umask 7; h)\nsource <(i) # j\n"
    assert programs(text) == ["cat", "a", "c", "f", "umask", "h", "source", "i"]
